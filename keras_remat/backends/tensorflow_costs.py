"""What a call costs on TensorFlow, by its graph and that of its gradient: nothing is computed.

Kept for the backward pass is what ops of the gradient read of the forward pass. An op that only views its
input (a reshape, an identity) stands for that input, and weights and constants are there anyway.
"""

import tensorflow as tf
from tensorflow.python.framework import func_graph

from keras_remat.backends.costs import Traced, prod
from keras_remat.backends.tensorflow_transients import most_held
from keras_remat.replay import subgraph

_VIEWS = {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Bitcast"}
_RESIDENT = {"Const", "ReadVariableOp", "VarHandleOp", "Variable", "VariableV2", "PlaceholderWithDefault"}
_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}  # read nothing of their input's buffer
_FREE = _VIEWS | _RESIDENT | _SHAPES | {"Placeholder", "NoOp", "IdentityN"}


def trace(run, specs, wanted, values, trained):
    """Trace `run(values, *tensors)` and its gradient; see `costs.Traced`.

    A tape finds the variables that are trained, but for those whose `values` are given: they lie in the graph
    outside, which is all that there is of a variable in a version 1 graph.
    """
    graph = func_graph.FuncGraph("cost")
    with graph.as_default():
        inputs = [tf.compat.v1.placeholder(dtype, shape) for shape, dtype in specs]
        with tf.GradientTape() as tape:
            differentiated = [t for t, is_wanted in zip(inputs, wanted) if is_wanted and _is_float(t)]
            references = [graph.capture(value) for value in values]
            tape.watch(differentiated + references)
            outputs = [tf.convert_to_tensor(t) for t in run(values, *inputs)]
        forward = list(graph.get_operations())
        # Before the gradient, for which TensorFlow rewrites loops: up to 2.0 their bodies know less then.
        work = {op.name: _work(op) for op in forward}
        sources = differentiated + references + list(tape.watched_variables())
        targets = [t for t in outputs if _is_float(t)]
        incoming = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in targets]
        grads = tape.gradient(targets, sources, output_gradients=incoming) if sources and targets else []
    made = list(_flat(grads))
    backward = _ops_of(made, forward)
    found = _Trace(inputs, outputs, work, _read_by(made, backward, forward))
    transient = found.transient(backward, incoming, differentiated, list(_flat(grads[: len(differentiated)])))
    return found.summed(bool(made), transient)


def _is_float(tensor):
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def _flat(grads):
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            yield from (grad.values, grad.indices)
        elif grad is not None:
            yield grad


def _ops_of(grads, forward):
    """List the ops of which `grads` are made, but for those of `forward`, in the order they were made in."""
    done, pending, found = {op.name for op in forward}, [t.op for t in grads], set()
    while pending:
        op = pending.pop()
        if op.name not in done:
            done.add(op.name)
            found.add(op.name)
            pending.extend(t.op for t in op.inputs if t.op.type != "Placeholder")
    return [op for op in grads[0].graph.get_operations() if op.name in found] if found else []


def _read_by(grads, backward, forward):
    """List the tensors of `forward` that ops of `backward` read, or that are `grads` themselves."""
    names = {op.name for op in forward}
    read = {_key(t): t for op in backward if op.type not in _SHAPES for t in op.inputs}
    read.update((_key(t), t) for t in grads)
    return [t for t in read.values() if t.op.name in names]


def _key(tensor):
    return tensor.op.name, tensor.value_index


class _Trace:
    """The ops of a call with their work, and which of its tensors its gradient reads."""

    def __init__(self, inputs, outputs, work, read):
        self.inputs, self.outputs, self.work = inputs, outputs, work
        self.given = {_key(t): i for i, t in enumerate(inputs)}
        self.read = {_key(root): root for root in map(self._root, read) if not self._is_resident(root)}

    def transient(self, backward, incoming, differentiated, grads):
        """Return the bytes that the gradient holds beside what is kept and places for gradients."""
        given = {_key(t) for t in self.inputs} - {_key(t) for t in differentiated}
        held = {key: 0 if key in given else size_of(root) for key, root in self.read.items()}
        held.update((_key(t), size_of(t)) for t in incoming)
        most = most_held(backward, held, [_key(self._root(t)) for t in grads], self._buffer)
        places = sum(map(size_of, (*incoming, *differentiated)))
        return max(0, most - places - sum(map(size_of, self._inner())))

    def _buffer(self, tensor):
        root = self._root(tensor)
        return _key(root), 0 if self._is_resident(root) else size_of(root)

    def _inner(self):
        outside = {_key(self._root(t)) for t in self.outputs}.union(self.given)
        return [t for key, t in self.read.items() if key not in outside]

    def summed(self, is_differentiable, transient):
        made = [self._root(t) for t in self.outputs]
        again = sum(self.work.get(name, 0) for name in self._ancestors(self.read.values()))
        return Traced(
            outputs=[(tuple(t.shape.as_list()), t.dtype) for t in self.outputs],
            views=[self.given.get(_key(t)) for t in made],
            sizes=[0 if self._is_resident(t) else size_of(t) for t in made],
            inner=sum(map(size_of, self._inner())),
            needs_inputs=[_key(t) in self.read for t in self.inputs],
            needs_outputs=[_key(t) in self.read for t in made],
            work=sum(self.work.values()),
            tail=sum(self.work.values()) - again,
            is_differentiable=is_differentiable,
            transient=transient,
        )

    def _root(self, tensor):
        while tensor.op.type in _VIEWS and _key(tensor) not in self.given:
            tensor = tensor.op.inputs[0]
        return tensor

    def _is_resident(self, tensor):
        if _key(tensor) in self.given:
            return False
        return tensor.op.type in _RESIDENT or tensor.op.type == "Placeholder"

    def _ancestors(self, tensors):
        found, pending = set(), [t.op for t in tensors]
        while pending:
            op = pending.pop()
            if op.name not in found:
                found.add(op.name)
                pending.extend(t.op for t in op.inputs)
        return found


def size_of(tensor):
    """Bytes of a tensor; of a list of tensors that a loop makes, those of all its steps."""
    if tensor.dtype == tf.variant:
        return _size_of_list(tensor)
    elements = tensor.shape.num_elements()
    return 0 if tensor.dtype == tf.resource else (elements or 0) * tensor.dtype.size


def _size_of_list(tensor, steps=0):
    """Bytes of a list of tensors, which a loop makes, in the end: after so many `steps`."""
    op = tensor.op
    if op.type in _LOOPS:
        start, steps, body = op.inputs[tensor.value_index], _steps(op), _body(op)
        pushes = [c for c in body.inputs[tensor.value_index].consumers() if c.type == "TensorListPushBack"]
        size = steps * sum(size_of(p.inputs[1]) for p in pushes if not _is_same_each_time(p.inputs[1], body))
        return 0 if pushes and not size else size or _size_of_list(start, steps)
    if op.type in _CALLS:
        return _size_of_list(_called(op).outputs[tensor.value_index])
    if op.type == "TensorListFromTensor":
        return size_of(op.inputs[0])
    if op.type in ("EmptyTensorList", "TensorListReserve"):
        shape = tf.get_static_value(op.inputs[0])
        is_known = shape is not None and shape.ndim and (shape >= 0).all()
        steps = steps or _value(op.inputs[1])
        return max(0, steps) * prod(shape.tolist()) * op.get_attr("element_dtype").size if is_known else 0
    return _size_of_list(op.inputs[0], steps) if op.inputs else 0


def _is_same_each_time(tensor, body):
    """True if a tensor in the body of a loop is one buffer in all steps: a weight, or what goes round."""
    while tensor.op.type in _VIEWS:
        tensor = tensor.op.inputs[0]
    rounds = [_key(given) for given, made in zip(body.inputs, body.outputs) if _key(given) == _key(made)]
    return tensor.op.type in _RESIDENT or _key(tensor) in rounds


def _steps(loop):
    """How often a loop runs: its limit, or the length of the lists that it goes through or fills."""
    limit = _value(loop.inputs[1])
    if limit > 0:
        return limit
    lists = [t.op for t in loop.inputs if t.dtype == tf.variant]
    lengths = [op.inputs[0].shape.as_list()[0] or 0 for op in lists if op.type == "TensorListFromTensor"]
    lengths += [_value(op.inputs[1]) for op in lists if op.type == "TensorListReserve"]
    return max(lengths + [1])


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
        (copy,) = subgraph.copy_tensors([tensor], {}, None)
        with tf.compat.v1.Session() as session:
            return int(session.run(copy))


_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
_LOOPS = ("While", "StatelessWhile")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}


def _work(op):
    """FLOPs of an op, and 20 for each byte that it reads or writes."""
    if op.type in _FREE:
        return 0
    moved = sum(size_of(t) for t in (*op.inputs, *op.outputs) if t.dtype != tf.variant)
    return flops(op) + 20 * moved


def flops(op):
    """Floating point operations of an op: those of products and convolutions, else one for each number."""
    if op.type in _FREE or not op.outputs:
        return 0
    made = sum(t.shape.num_elements() or 0 for t in op.outputs if t.dtype != tf.variant)
    if op.type in _PRODUCTS:
        transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return 2 * made * int(op.inputs[0].shape[-2 if transposed else -1])
    if op.type in _CONVOLUTIONS:
        kernel = op.inputs[1].shape.as_list()
        return 2 * made * prod(kernel[: -1 if op.type != "DepthwiseConv2dNative" else -2])
    if op.type == "Einsum":
        return 2 * prod(_sizes_of_einsum(op).values())
    if op.type in _LOOPS:
        return _steps(op) * sum(map(flops, _body(op).get_operations()))
    if op.type in _CALLS:
        return sum(map(flops, _called(op).get_operations()))
    return made


def _sizes_of_einsum(op):
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    return {
        letter: size
        for term, tensor in zip(terms, op.inputs)
        for letter, size in zip(term, tensor.shape.as_list())
    }


def _body(op):
    return _graph_of(op, "body")


def _called(op):
    return _graph_of(op, "f")


def _graph_of(op, attribute):
    """The graph of a function that an op calls."""
    name = op.get_attr(attribute).name
    graph = op.graph
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.graph
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)
