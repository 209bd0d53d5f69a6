"""How Keras 2.3.1 has the costs of a call traced: in a graph of its own, as it runs in training.

Layers are run by `call`, which notes nothing in nodes; what it leaves in layers is taken back.
"""

import contextlib
import functools

import tensorflow as tf
from tensorflow.python.keras.utils import tf_utils

from keras_remat.families import costs, wrapping


def trace(family, call, specs, wanted, masked):
    """Trace a call with inputs of shapes and dtypes `specs`; see `costs.trace`."""

    def run_call(values, tensors):
        _run_call(family, call, tensors)

    layers = family.sublayers(call.layer)
    nodes = [node for layer in layers for node in layer._inbound_nodes]
    # Keras 2.3.1 has its learning phase from TensorFlow's.
    with tf.keras.backend.learning_phase_scope(1), _unchanged(layers + nodes):
        values = family.backend.trained_references(family.variables([call.layer]))
        return costs.trace(family, call, run_call, specs, wanted, masked, values)


def _run_call(family, call, tensors):
    """Run one call of a model on tensors by their keys, and add its outputs, with their masks."""
    layer = call.layer
    inputs = [tensors[key] for key in call.inputs]
    masks = [family.mask_of(t) for t in inputs]
    if len(inputs) == 1:
        (inputs,), (masks,) = inputs, masks
    kwargs = arguments_of(call)
    # A model inside another one leaves the masks of its last call in the arguments of its nodes.
    if wrapping.accepts(layer, "mask") and kwargs.get("mask") is None:
        kwargs["mask"] = masks
    with family.module("backend").name_scope(layer.name):
        outputs = layer.call(inputs, **kwargs)
        masks = layer.compute_mask(inputs, masks)
    # Copies, as Keras makes of inputs that are put out as they are.
    outputs = [tf.identity(t) for t in _listed(outputs)]
    masks = masks if isinstance(masks, (list, tuple)) else [masks] * len(outputs)
    for key, output, mask in zip(call.outputs, outputs, masks):
        family.set_mask(output, mask)
        tensors[key] = output


def arguments_of(call):
    """Return what a call is given beside tensors."""
    return {} if call.node is call.layer else dict(call.node.arguments or {})  # a layer: of a list of them


def _listed(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def allow_fixed_phase():
    """Let recurrent layers of Keras 2.3.1 run where the learning phase is a number, as it is in a trace.

    They ask which tensors depend on it, which is an error of TensorFlow for a number: none do.
    """
    original = tf_utils.get_reachable_from_inputs

    @functools.wraps(original)
    def reachable(inputs, targets=None):
        return original([x for x in inputs if not isinstance(x, int)], targets)

    tf_utils.get_reachable_from_inputs = reachable


@contextlib.contextmanager
def _unchanged(holders):
    """Let the attributes of objects, and lists and dicts in them, be what they were."""
    before, pending = {}, [vars(holder) for holder in holders]
    while pending:
        held = pending.pop()
        if id(held) not in before:
            before[id(held)] = held, type(held)(held)
            values = held.values() if isinstance(held, dict) else held
            pending.extend(value for value in values if type(value) in (dict, list))
    try:
        yield
    finally:
        for held, items in before.values():
            if isinstance(held, dict):
                held.clear()
                held.update(items)
            else:
                held[:] = items
