"""Loops and functions in a graph of TensorFlow: what is in them, how often it runs, what they keep.

A loop is an op that calls a function for each step. What its gradient reads of the steps, it puts out as
lists of tensors, which the gradient adds to the loop when it is made.
"""

import tensorflow as tf

from keras_remat.backends.costs import prod
from keras_remat.backends.tensorflow_ops import RESIDENT, VIEWS
from keras_remat.replay import subgraph

LOOPS = ("While", "StatelessWhile")
CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def size_of(tensor):
    """Bytes of a tensor; of a list of tensors that a loop makes, those of all its steps."""
    if tensor.dtype == tf.variant:
        return _size_of_list(tensor)
    elements = tensor.shape.num_elements()
    return 0 if tensor.dtype == tf.resource else (elements or 0) * tensor.dtype.size


def _size_of_list(tensor, length=0):
    """Bytes of a list of tensors, which a loop makes, in the end: when its length is `length`, if known."""
    op = tensor.op
    if op.type in LOOPS:
        start, length, graph = op.inputs[tensor.value_index], steps(op), body(op)
        readers = graph.inputs[tensor.value_index].consumers()
        if any(reader.type == "TensorListPopBack" for reader in readers):  # a gradient takes what was kept
            return 0
        pushes = [reader for reader in readers if reader.type == "TensorListPushBack"]
        pushed = [p.inputs[1] for p in pushes if not _is_same_each_time(p.inputs[1], graph)]
        size = length * sum(size_of(_as_it_was(op, t)) for t in pushed)
        return 0 if pushes and not size else size or _size_of_list(start, length)
    if op.type in CALLS:
        return _size_of_list(called(op).outputs[tensor.value_index])
    if op.type == "TensorListFromTensor":
        return size_of(op.inputs[0])
    if op.type in ("EmptyTensorList", "TensorListReserve"):
        shape = tf.get_static_value(op.inputs[0])
        is_known = shape is not None and shape.ndim and (shape >= 0).all()
        length = length or _value(op.inputs[1])
        return max(0, length) * prod(shape.tolist()) * op.get_attr("element_dtype").size if is_known else 0
    return _size_of_list(op.inputs[0], length) if op.inputs else 0


def _is_same_each_time(tensor, graph):
    """True if a tensor in the body of a loop is one buffer in all steps: a weight, or what goes round."""
    while tensor.op.type in VIEWS:
        tensor = tensor.op.inputs[0]
    if tensor.op.type in RESIDENT:
        return True
    return any(given is tensor and _goes_round(graph, i) for i, given in enumerate(graph.inputs))


def _goes_round(graph, i):
    """True if the result of a step at a position is what it was given there."""
    return _viewed(graph.outputs[i]) is graph.inputs[i]


def steps(loop):
    """How often a loop runs: its limit, or the length of the lists that it goes through or fills."""
    limit = _value(loop.inputs[1])
    if limit > 0:
        return limit
    lists = [t.op for t in loop.inputs if t.dtype == tf.variant]
    lengths = [op.inputs[0].shape.as_list()[0] or 0 for op in lists if op.type == "TensorListFromTensor"]
    lengths += [_value(op.inputs[1]) for op in lists if op.type == "TensorListReserve"]
    return max(lengths + [1])


def loops_in(op):
    """List the loops that an op is, or that the function has which it calls."""
    if op.type in LOOPS:
        return [op]
    return [one for one in called(op).get_operations() if one.type in LOOPS] if op.type in CALLS else []


def ahead(loop):
    """Return what steps that run ahead of a loop's sums hold for them, and the share of the steps they are.

    In a gradient these are gradients of weights, one for each step. What adds them up waits for the step
    before, so as many wait as may run side by side.
    """
    count, graph = steps(loop), body(loop)
    at_once = min(count, _parallel(loop))
    added = [t for given, result in zip(graph.inputs, graph.outputs) for t in _added(given, result)]
    return at_once * sum(map(size_of, added)), at_once / count


def _parallel(loop):
    try:
        return int(loop.get_attr("parallel_iterations"))
    except ValueError:  # TensorFlow 1.14 does not say; Keras asks for so many
        return 32


def _added(given, result):
    """List the tensors that a step adds to what it was `given`."""
    op = _viewed(result).op
    if op.type not in ("Add", "AddV2", "AddN") or not result.dtype.is_floating:
        return []
    others = [t for t in op.inputs if _viewed(t) is not given]
    return others if len(others) < len(op.inputs) else []


def _viewed(tensor):
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _value(tensor):
    """The number that a tensor of a graph is, from constants alone; 0 where it depends on more."""
    found, pending = set(), [tensor.op]
    while pending:
        op = pending.pop()
        if op.type in ("Placeholder", "VarHandleOp") or op.op_def.is_stateful:
            return 0
        if op.name not in found:
            found.add(op.name)
            pending.extend(t.op for t in op.inputs)
    with tf.Graph().as_default():  # up to TensorFlow 2.1 a graph in which a loop has a gradient cannot run
        copies = subgraph.copy_tensors([tensor], {}, None)
        with tf.compat.v1.Session() as session:
            return int(session.run(copies[subgraph.key(tensor)]))


def is_passed_on(tensor):
    """True for a result of a loop that no step of it changes."""
    if tensor.op.type not in LOOPS or tensor.dtype == tf.variant:
        return False
    return _goes_round(body(tensor.op), tensor.value_index)


def body(loop):
    """The graph of a step of a loop."""
    return _graph_of(loop, "body")


def called(op):
    """The graph of the function that an op calls."""
    return _graph_of(op, "f")


def _as_it_was(loop, tensor):
    """A tensor of a loop's body, before the gradient: up to TensorFlow 2.0 that forgets shapes."""
    name, is_rewritten, _ = loop.get_attr("body").name.partition("_rewritten")
    if tensor.shape.is_fully_defined() or not is_rewritten:
        return tensor
    return _graph_named(name, loop.graph).get_tensor_by_name(tensor.name)


def _graph_of(op, attribute):
    return _graph_named(op.get_attr(attribute).name, op.graph)


def _graph_named(name, graph):
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)
