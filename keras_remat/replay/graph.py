"""The recomputed block in graph mode: one IdentityN whose gradient copies the block and differentiates it.

    outputs, boundary = IdentityN(outputs, boundary)

The gradient finds the block by itself: it is what lies between the op's first inputs and its last.
Nothing else is remembered, so the op can be nested, copied, lifted into another graph or saved.
"""

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from keras_remat.replay import control_flow, subgraph, tapes
from keras_remat.replay import scope as scopes
from keras_remat.replay.marks import unconverted
from keras_remat.replay.tapes import tape_lib

GRADIENT = "KerasRemat"
_OUTPUTS = "_keras_remat_outputs"


def recompute(outputs, inputs, new_ops):
    """Return `outputs` (tensors of the current graph), to be computed again for their gradient.

    Args:
      outputs: list of tensors that a block has made.
      inputs: list of tensors that it was called with.
      new_ops: names of the ops that were made while it was called.
    """
    boundary = subgraph.find_boundary(outputs, inputs, lambda op: op.name in new_ops)
    boundary = [t for t in boundary if t.dtype.base_dtype not in subgraph.OPAQUE]
    if all(any(o is t for t in boundary) for o in outputs):
        return list(outputs)
    tensors = outputs + boundary
    graph = ops.get_default_graph()
    with tapes.stopped(), graph.gradient_override_map({"IdentityN": GRADIENT}):
        results = tf.identity_n(tensors, name="recomputed")
    op = results[0].op
    op._set_attr(_OUTPUTS, attr_value_pb2.AttrValue(i=len(outputs)))
    tape_lib.record_operation(GRADIENT, results, tensors, lambda *grads: _gradient(op, *grads))
    return results[: len(outputs)]


@ops.RegisterGradient(GRADIENT)
def _gradient(op, *grads):
    """Differentiate a copy of the block that ends in `op`."""
    if op is None:  # a SavedModel is written, which holds gradients without their ops: an identity's then
        return list(grads)
    count = op.get_attr(_OUTPUTS)
    outputs, boundary = list(op.inputs[:count]), list(op.inputs[count:])
    grads = [_dense_or_sparse(g) for g in grads[:count]]
    with tapes.stopped():
        results = _differentiate(outputs, boundary, grads)
    return [None] * count + _recorded(boundary + [g for g in grads if g is not None], results)


def _dense_or_sparse(grad):
    return grad if grad is None or isinstance(grad, tf.Tensor) else tf.convert_to_tensor(grad)


def _differentiate(outputs, boundary, grads):
    """Return the gradients of `outputs` with respect to `boundary`, from a copy made behind `grads`."""
    arrived = [g for g in grads if g is not None]
    if not arrived:
        return [None] * len(boundary)
    # A name of its own at the root: TensorFlow 1 tells the gradients of TensorArrays apart by the last
    # "gradients" in the name of an op.
    with ops.name_scope(None), ops.name_scope("recompute"):
        leaves = _leaves(boundary, arrived)
        feeds = {subgraph.key(t): leaf for t, leaf in zip(boundary, leaves)}
        copies = subgraph.copy_tensors(outputs, feeds, leaves[0] if leaves else None)
        pairs = [
            (copies[subgraph.key(y)], g) for y, g in zip(outputs, grads) if g is not None and _is_float(y)
        ]
        wanted = [leaf for leaf in leaves if _is_float(leaf)]
        if not pairs or not wanted:
            return [None] * len(boundary)
        graph = ops.get_default_graph()
        before = len(graph.get_operations())
        found = iter(tf.gradients([y for y, _ in pairs], wanted, grad_ys=[g for _, g in pairs]))
        if graph is outputs[0].graph:
            _read_copies(graph.get_operations()[before:], copies)
        results = [next(found) if _is_float(leaf) else None for leaf in leaves]
    return _together(boundary, results)


def _read_copies(gradient_ops, copies):
    """Let `gradient_ops` read the copy where they read the first run.

    A gradient that `tf.custom_gradient` was given holds tensors of the run that it was made in, and would
    keep them. Keras's swish is made so.
    """
    for op in gradient_ops:
        for i, tensor in enumerate(op.inputs):
            copy = copies.get(subgraph.key(tensor))
            if copy is not None and copy.dtype == tensor.dtype and _are_in_one_context(op, copy.op):
                op._update_input(i, copy)


def _are_in_one_context(op, other):
    return control_flow.context_of(op) is control_flow.context_of(other)


def _is_float(tensor):
    return tensor.dtype.base_dtype.is_floating or tensor.dtype.base_dtype.is_complex


def _leaves(boundary, arrived):
    """Make the inputs of the copy: the boundary, but not before the gradient has arrived."""
    if control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
        return [_after(tensor, arrived) for tensor in boundary]
    with ops.control_dependencies(arrived):
        return [tf.identity(tensor) for tensor in boundary]


def _after(tensor, arrived):
    """Make `tensor` depend on the data of `arrived` without changing it.

    XLA drops control dependencies and would merge the copy with the first run. It may not assume that a
    number equals itself, so this choice stays; a gradient that is not a number makes all of them so.
    """
    probe = tf.cast(tf.reshape(arrived[0], [-1])[:1], tf.float32)
    is_number = tf.reshape(tf.equal(probe, probe), [])
    if tensor.dtype.base_dtype == tf.bool:
        return tf.logical_and(tensor, is_number)
    if not (tensor.dtype.base_dtype.is_floating or tensor.dtype.base_dtype.is_integer):
        return tf.identity(tensor)
    other = tf.zeros_like(tensor)
    return tf.compat.v2.where(is_number, tensor, other)


def _together(boundary, grads):
    """Hand no gradient on before all are there.

    The executor may otherwise run far ahead with the gradient of the inputs and put off those of the
    weights, which keeps the block's activations alive. What is handed on gets its name where the caller
    differentiates: it may be the gradient of a TensorArray that the block only reads.
    """
    weights = [g for t, g in zip(boundary, grads) if g is not None and _is_read(t)]
    flat = [g.values if isinstance(g, tf.IndexedSlices) else g for g in weights]
    with ops.control_dependencies(flat):
        return [
            g if g is None or _is_read(t) or not isinstance(g, tf.Tensor) else tf.identity(g)
            for t, g in zip(boundary, grads)
        ]


def _is_read(tensor):
    return tensor.op.type in ("ReadVariableOp", "Enter", "ResourceGather")


def _recorded(inputs, results):
    """Let tapes that watch a gradient see it as one operation of `inputs`; so for each higher derivative."""
    if not tape_lib.could_possibly_record():
        return results
    with tapes.stopped():  # what is recorded must be made by it: a gradient may be an input itself
        results = [_copied(r) for r in results]
    outputs = [r.values if isinstance(r, tf.IndexedSlices) else r for r in results if r is not None]
    if not outputs:
        return results

    def backward(*grads):
        pairs = [(y, g) for y, g in zip(outputs, grads) if g is not None]
        arrived = [g for _, g in pairs]
        with tapes.stopped():
            found = tf.gradients([y for y, _ in pairs], inputs, grad_ys=arrived, stop_gradients=inputs)
        return _recorded(inputs + arrived, found)

    tape_lib.record_operation(GRADIENT + "Gradient", outputs, inputs, backward)
    return results


def _copied(grad):
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(grad.values), grad.indices, grad.dense_shape)
    return grad if grad is None else tf.identity(grad)


@unconverted
def run(call, inputs):
    """Call `call()` in the current graph; return its tensors, to be computed again for the gradient.

    `call` returns a list of tensors; `inputs` lists the tensors that it takes from its caller.
    """
    graph = ops.get_default_graph()
    before = len(graph.get_operations())
    with scopes.opened(scopes.Scope(graph)):
        outputs = call()
    new_ops = {op.name for op in graph.get_operations()[before:]}
    ours = [t for t in outputs if getattr(t, "graph", None) is graph]
    results = iter(recompute(ours, [t for t in inputs if getattr(t, "graph", None) is graph], new_ops))
    return [next(results) if getattr(t, "graph", None) is graph else t for t in outputs]
