"""Models of Keras 3, converted in place: an instance-level `call` walks the model's own graph by segments."""

import functools

from keras_remat.families import replaced, segments, wrapping
from keras_remat.families.base import Call


def calls(family, model):
    """List the calls of a Sequential or functional model; None for others."""
    if not type(model).call.__module__.startswith(family.root + "."):
        return None
    if is_chain(family, model):
        shape = model.input_shape if model._functional else None
        return segments.chain_calls(family, list(model.layers), shape)
    if not isinstance(model, family.module("models.functional").Functional):
        return None
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth]]
    return [_call_of(family, node) for node in nodes if node.operation and not node.is_input]


def is_chain(family, model):
    """True for a Sequential."""
    return isinstance(model, family.module("models.sequential").Sequential)


def output_keys(family, model):
    """List the keys of a model's outputs."""
    if is_chain(family, model):
        return [str(len(model.layers))]
    return [str(id(t)) for t in model.outputs]


def _call_of(family, node):
    size = wrapping.size_of([list(t.shape) for t in node.outputs])
    inputs, outputs = (tuple(str(id(t)) for t in tensors) for tensors in (node.input_tensors, node.outputs))
    inside = size * segments.depth(family, node.operation)
    return Call(node.operation, tuple(dict.fromkeys(inputs)), outputs, size, inside, node)


def convert(family, model, parts, runtime):
    """Give `model` a call that runs its calls segment by segment."""
    plain = type(model).call
    is_sequential = is_chain(family, model)
    layers = [call.layer for segment in parts for call in segment.calls]

    def call(self, inputs, training=None, mask=None, **kwargs):
        # A copy of the model has layers of its own.
        if self is not model or not parts or not runtime.is_on(family):
            return plain(self, inputs, training=training, mask=mask, **kwargs)
        if is_sequential:
            segments.check_chain(model, layers)
        tensors = _inputs(family, model, inputs, mask)
        run = functools.partial(run_call, family, context=dict(kwargs, training=training))
        keys = [parts[-1].outputs[0]] if is_sequential else [str(id(t)) for t in model.outputs]
        outputs = segments.run_segments(family, model, parts, tensors, keys, run, runtime)
        return outputs[0] if is_sequential else _packed(family, model, outputs)

    replaced.replace_call(model, call, segments=parts)


def _inputs(family, model, inputs, mask):
    """Return the model's inputs by their keys, as Keras would have them: converted, of the right rank."""
    tree = family.module("tree")
    graph = getattr(model, "_functional", model)  # of a Sequential; None if its inputs are nested
    flat = graph._standardize_inputs(inputs) if graph is not None else tree.flatten(inputs)
    for tensor, tensor_mask in zip(flat, tree.flatten(mask) if mask is not None else ()):
        if tensor_mask is not None:
            family.set_mask(tensor, tensor_mask)
    if graph is model:
        return {str(id(reference)): tensor for reference, tensor in zip(model.inputs, flat)}
    return {"0": tree.pack_sequence_as(inputs, flat) if graph is None else flat[0]}


def _packed(family, model, outputs):
    packed = family.module("tree").pack_sequence_as(model._outputs_struct, outputs)
    return packed[0] if isinstance(packed, (list, tuple)) and len(packed) == 1 else packed


def run_call(family, call, tensors, context):
    """Run one call of a model on tensors by their keys, and add its outputs to them."""
    if call.node is call.layer:  # of a Sequential
        segments.run_chain_call(call, tensors, context["training"])
        return
    functional = family.module("models.functional")
    args, kwargs = call.node.arguments.fill_in({int(key): t for key, t in tensors.items()})
    outputs = functional.operation_fn(call.layer, **context)(*args, **kwargs)
    tensors.update(zip(call.outputs, family.module("tree").flatten(outputs)))


def forget_functions(model):
    """Drop the functions that `fit` made of the model's old call."""
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
