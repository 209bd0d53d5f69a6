"""What a call costs on TensorFlow, by its graph and that of its gradient: nothing is computed.

Kept for the backward pass is what ops of the gradient read of the forward pass. An op that only views its
input (a reshape, an identity) stands for that input, and weights and constants are there anyway.
"""

import contextlib
import inspect

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import while_v2

from keras_remat.backends.costs import Traced, prod
from keras_remat.backends.tensorflow_loops import CALLS, LOOPS, body, called, is_passed_on, size_of, steps
from keras_remat.backends.tensorflow_ops import FREE, RESIDENT, SHAPES, VIEWS, key_of
from keras_remat.backends.tensorflow_transients import most_held
from keras_remat.replay import scope as scopes


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
            with _reading_outside(graph):
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


def _reading_outside(graph):
    """Context manager: loops get what they read of variables from outside, as in a block.

    Up to TensorFlow 2.0 the gradient of a loop does not know the shapes of variables that are read in it.
    """
    if "attr_graph_name" in inspect.signature(while_v2._get_graph).parameters:
        return contextlib.nullcontext()
    scope = scopes.Scope(graph)
    scope.lifted = _Nothing()
    return scopes.opened(scope)


class _Nothing(set):
    """A set that takes nothing: variables may be written after they were read, since nothing runs."""

    def add(self, item):
        """Leave `item` out."""


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
    read = {key_of(t): t for op in backward if op.type not in SHAPES for t in op.inputs}
    read.update((key_of(t), t) for t in grads)
    return [t for t in read.values() if t.op.name in names]


class _Trace:
    """The ops of a call with their work, and which of its tensors its gradient reads."""

    def __init__(self, inputs, outputs, work, read):
        self.inputs, self.outputs, self.work = inputs, outputs, work
        self.given = {key_of(t): i for i, t in enumerate(inputs)}
        self.read = {key_of(root): root for root in map(self._root, read) if not self._is_resident(root)}

    def transient(self, backward, incoming, differentiated, grads):
        """Return the bytes that the gradient holds beside what is kept and places for gradients."""
        given = {key_of(t) for t in self.inputs} - {key_of(t) for t in differentiated}
        held = {key: 0 if key in given else size_of(root) for key, root in self.read.items()}
        held.update((key_of(t), size_of(t)) for t in incoming)
        most = most_held(backward, held, [key_of(self._root(t)) for t in grads], self._buffer)
        places = sum(map(size_of, (*incoming, *differentiated)))
        return max(0, most - places - sum(map(size_of, self._inner())))

    def _buffer(self, tensor):
        root = self._root(tensor)
        return key_of(root), 0 if self._is_resident(root) else size_of(root)

    def _inner(self):
        outside = {key_of(self._root(t)) for t in self.outputs}.union(self.given)
        return [t for key, t in self.read.items() if key not in outside]

    def summed(self, is_differentiable, transient):
        made = [self._root(t) for t in self.outputs]
        again = sum(self.work.get(name, 0) for name in self._ancestors(self.read.values()))
        return Traced(
            outputs=[(tuple(t.shape.as_list()), t.dtype) for t in self.outputs],
            views=[self.given.get(key_of(t)) for t in made],
            sizes=[0 if self._is_resident(t) else size_of(t) for t in made],
            inner=sum(map(size_of, self._inner())),
            needs_inputs=[key_of(t) in self.read for t in self.inputs],
            needs_outputs=[key_of(t) in self.read for t in made],
            work=sum(self.work.values()),
            tail=sum(self.work.values()) - again,
            is_differentiable=is_differentiable,
            transient=transient,
        )

    def _root(self, tensor):
        while key_of(tensor) not in self.given and (tensor.op.type in VIEWS or is_passed_on(tensor)):
            tensor = tensor.op.inputs[tensor.value_index if tensor.op.type in LOOPS else 0]
        return tensor

    def _is_resident(self, tensor):
        if key_of(tensor) in self.given:
            return False
        return tensor.op.type in RESIDENT or tensor.op.type == "Placeholder"

    def _ancestors(self, tensors):
        found, pending = set(), [t.op for t in tensors]
        while pending:
            op = pending.pop()
            if op.name not in found:
                found.add(op.name)
                pending.extend(t.op for t in op.inputs)
        return found


_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
_CONVOLUTIONS = {"Conv2D", "Conv3D", "DepthwiseConv2dNative"}


def _work(op):
    """FLOPs of an op, and 20 for each byte that it reads or writes."""
    if op.type in FREE:
        return 0
    moved = sum(size_of(t) for t in (*op.inputs, *op.outputs) if t.dtype != tf.variant)
    return flops(op) + 20 * moved


def flops(op):
    """Floating point operations of an op: those of products and convolutions, else one for each number."""
    if op.type in FREE or not op.outputs:
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
    if op.type in LOOPS:
        return steps(op) * sum(map(flops, body(op).get_operations()))
    if op.type in CALLS:
        return sum(map(flops, called(op).get_operations()))
    return made


def _sizes_of_einsum(op):
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    return {
        letter: size
        for term, tensor in zip(terms, op.inputs)
        for letter, size in zip(term, tensor.shape.as_list())
    }
