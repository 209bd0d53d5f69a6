"""What a step of a `tf.function` holds in tensors, by TensorFlow's own records of their allocation.

The step's graph runs in a session with full tracing, where each op reports what it allocates and when that is
freed. What an op allocates and does not put out is its workspace and counted apart; buffers that Eigen takes
to multiply matrices are in no record, but the heap counter sees them.
"""

import tensorflow as tf

V1 = tf.compat.v1


def peaks(function, *args):
    """Return the most bytes that tensors take at a time, and the same with workspaces, in one run."""
    concrete = function.get_concrete_function(*args)
    graph, captured = concrete.graph, _values_of_captures(concrete.graph)
    with tf.Graph().as_default() as copy:
        resources = [_placed(inner, captured) for _, inner in graph.captures]
        feeds = {inner.name: placed[0] for (_, inner), placed in zip(graph.captures, resources)}
        V1.import_graph_def(graph.as_graph_def(), name="", input_map=feeds)
        fetches = [tensor.name for tensor in graph.outputs]
        options, metadata = V1.RunOptions(trace_level=V1.RunOptions.FULL_TRACE), V1.RunMetadata()
        with V1.Session(graph=copy) as session:
            session.run([initializer for _, made in resources for initializer in made])
            session.run(fetches)
            session.run(fetches, options=options, run_metadata=metadata)
    tensors, workspaces = _records(metadata.step_stats)
    return _peak(tensors), _peak(tensors + workspaces)


def _values_of_captures(graph):
    """The numbers that captured variables and constants have, by the name of their placeholder."""
    variables = {id(variable.handle): variable for variable in graph.variables}
    return {
        inner.name: (variables[id(outer)] if outer.dtype == tf.resource else outer).numpy()
        for outer, inner in graph.captures
    }


def _placed(inner, captured):
    """What takes the place of a capture in a copy of the graph, and what has to run before."""
    if inner.dtype != tf.resource:
        return tf.constant(captured[inner.name]), []
    variable = V1.Variable(captured[inner.name], use_resource=True)
    return variable.handle, [variable.initializer]


def _records(stats):
    """List (time, bytes) of tensors and of workspaces; bytes are negative where they are freed."""
    tensors, workspaces = [], []
    for device in stats.dev_stats:
        for node in device.node_stats:
            described = [output.tensor_description.allocation_description for output in node.output]
            put_out = {found.allocated_bytes for found in described}
            for memory in node.memory:
                for record in memory.allocation_records:
                    found = tensors if abs(record.alloc_bytes) in put_out else workspaces
                    found.append((record.alloc_micros, record.alloc_bytes))
    return tensors, workspaces


def _peak(records):
    held = most = 0
    for _, size in sorted(records):
        held += size
        most = max(most, held)
    return most
