"""A training step as a `tf.function`, and what it holds in tensors, by TensorFlow's records of allocation.

The step's graph runs in a session with full tracing, where each op reports what it allocates and when that is
freed. What an op allocates and does not put out, alone or in a list, is its workspace and not counted. Ops
that wait for the same run in any order, which moves the peak by a tensor or two: it is the median of a few
runs.
"""

import statistics

import tensorflow as tf

V1 = tf.compat.v1
RUNS = 5


def make_step(model, x):
    """Return a function that runs a step and returns its loss and the sum of all gradients."""
    x = tf.nest.map_structure(tf.constant, x)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(x, training=True), "float32")))
        grads = tape.gradient(loss, model.trainable_variables)
        sums = [tf.reduce_sum(tf.convert_to_tensor(grad)) for grad in grads if grad is not None]
        return loss, tf.add_n(sums)

    return step


def peak(step):
    """Return the most bytes that tensors take at a time in a run of a step; of several runs, the median."""
    concrete = step.get_concrete_function()
    graph, captured = concrete.graph, _values_of_captures(concrete.graph)
    with tf.Graph().as_default() as copy:
        resources = [_placed(inner, captured) for _, inner in graph.captures]
        feeds = {inner.name: placed[0] for (_, inner), placed in zip(graph.captures, resources)}
        V1.import_graph_def(graph.as_graph_def(), name="", input_map=feeds)
        fetches = [tensor.name for tensor in graph.outputs]
        with V1.Session(graph=copy) as session:
            session.run([initializer for _, made in resources for initializer in made])
            session.run(fetches)
            return int(statistics.median(_peak(_traced(session, fetches)) for _ in range(RUNS)))


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


def _traced(session, fetches):
    """Run a graph and return what ops allocated meanwhile."""
    metadata = V1.RunMetadata()
    options = V1.RunOptions(trace_level=V1.RunOptions.FULL_TRACE)
    session.run(fetches, options=options, run_metadata=metadata)
    return _records(metadata.step_stats)


def _records(stats):
    """List (time, bytes) of tensors; bytes are negative where they are freed."""
    found = []
    for device in stats.dev_stats:
        for node in device.node_stats:
            described = [output.tensor_description for output in node.output]
            put_out = {found.allocation_description.allocated_bytes for found in described}
            has_list = any(found.dtype == tf.variant.as_datatype_enum for found in described)
            records = [record for memory in node.memory for record in memory.allocation_records]
            counted = [r for r in records if has_list or abs(r.alloc_bytes) in put_out]
            found += [(record.alloc_micros, record.alloc_bytes) for record in counted]
    return found


def _peak(records):
    held = most = 0
    for _, size in sorted(records):
        held += size
        most = max(most, held)
    return most
