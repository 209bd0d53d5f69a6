"""Models of tf.keras and tf_keras, converted in place.

A converted model or layer has a `call` of its own on the instance, which Keras uses and never saves.
A functional model's walks the model's nodes as Keras does, segment by segment.
"""

import functools

import tensorflow as tf

from keras_remat.families import replaced, segments, wrapping
from keras_remat.families.base import Call


def calls(family, model):
    """List the calls of a Sequential or functional model; None for others."""
    if isinstance(model, family.sequential_model_class) and _has_own_call(family, model):
        return segments.chain_calls(family, list(model.layers), _input_shape(model))
    if not getattr(model, "_is_graph_network", False) or not _has_own_call(family, model):
        return None
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth]]
    return [_call_of(family, node) for node in nodes if not _is_input(node)]


def output_keys(family, model):
    """List the keys of a model's outputs."""
    if isinstance(model, family.sequential_model_class):
        return [str(len(model.layers))]
    return [str(id(t)) for t in model.outputs]


def _has_own_call(family, model):
    return type(model).call.__module__.startswith(family.root + ".")


def _input_shape(model):
    return model.input_shape if getattr(model, "inputs", None) else None


def _call_of(family, node):
    size = wrapping.size_of([list(t.shape) for t in tf.nest.flatten(node.output_tensors)])
    layer = _layer_of(node)
    return Call(
        layer, _input_keys(node), _output_keys(node), size, size * segments.depth(family, layer), node
    )


def _layer_of(node):
    return node.layer if hasattr(node, "flat_input_ids") else node.outbound_layer


def _is_input(node):
    return node.is_input if hasattr(node, "flat_input_ids") else not tf.nest.flatten(node.inbound_layers)


def _input_keys(node):
    if hasattr(node, "flat_input_ids"):  # TensorFlow 2.4+
        return tuple(node.flat_input_ids)
    tensors = tf.nest.flatten(node.input_tensors)
    tensors += [t for t in tf.nest.flatten(node.arguments or {}) if hasattr(t, "_keras_history")]
    return tuple(str(id(t)) for t in tensors)


def _output_keys(node):
    if hasattr(node, "flat_output_ids"):
        return tuple(node.flat_output_ids)
    return tuple(str(id(t)) for t in tf.nest.flatten(node.output_tensors))


def convert(family, model, parts, runtime):
    """Give `model` a call that runs its calls segment by segment."""
    plain = type(model).call
    is_chain = isinstance(model, family.sequential_model_class)
    keys = output_keys(family, model)
    layers = [call.layer for segment in parts for call in segment.calls]

    def call(self, inputs, training=None, mask=None):
        # A copy of the model has layers of its own.
        if self is not model or not parts or not runtime.is_on(family):
            return plain(self, inputs, training=training, mask=mask)
        if is_chain:
            segments.check_chain(model, layers)
            _build_chain(model, inputs)
        tensors = _chain_inputs(model, inputs, mask) if is_chain else _graph_inputs(model, inputs, mask)
        run = functools.partial(run_call, training=training)
        wanted = [parts[-1].outputs[0]] if is_chain else keys
        outputs = segments.run_segments(family, model, parts, tensors, wanted, run, runtime)
        return outputs[0] if is_chain else tf.nest.pack_sequence_as(model._nested_outputs, outputs)

    replaced.replace_call(model, call, segments=parts)


def _build_chain(model, inputs):
    """Let a Sequential that was given no input shape become a graph of layers, as Keras does in `call`."""
    build = getattr(model, "_build_graph_network_for_inferred_shape", None)  # TensorFlow 2.3+
    if build and not model._has_explicit_input_shape and tf.is_tensor(inputs):
        build(inputs.shape, inputs.dtype)


def _chain_inputs(model, inputs, mask):
    if getattr(model, "_is_graph_network", False):
        (inputs,) = _graph_inputs(model, inputs, mask).values()
    elif mask is not None:
        inputs._keras_mask = mask
    return {"0": inputs}


def _graph_inputs(model, inputs, mask):
    flatten = getattr(model, "_flatten_to_reference_inputs", tf.nest.flatten)
    inputs = flatten(inputs)
    masks = [None] * len(inputs) if mask is None else flatten(mask)
    tensors = {}
    for reference, tensor, tensor_mask in zip(model.inputs, inputs, masks):
        if tensor is not None:
            tensor._keras_mask = tensor_mask
        if hasattr(model, "_conform_to_reference_input"):
            tensor = model._conform_to_reference_input(tensor, ref_input=reference)
        tensors[str(id(reference))] = tensor
    return tensors


class _Always(list):
    """Stands for a list of copies of one tensor: Keras pops one for each use."""

    def pop(self):
        return self[0]


def run_call(call, tensors, training, explicit=False):
    """Run one call of a model on tensors by their keys, and add its outputs to them.

    If `explicit`, layers are told `training`, which else they know from the model that is being called.
    """
    node = call.node
    if node is call.layer:  # of a Sequential
        segments.run_chain_call(call, tensors, training)
        return
    args, kwargs = arguments(node, [tensors[key] for key in call.inputs])
    is_told = explicit or not hasattr(node, "map_arguments")
    if is_told and wrapping.accepts(call.layer, "training") and kwargs.get("training") is None:
        kwargs["training"] = training
    outputs = call.layer(*args, **kwargs)
    tensors.update(zip(call.outputs, tf.nest.flatten(outputs)))


def arguments(node, tensors):
    """Return the arguments that a node's layer is called with, if it is given `tensors`."""
    given = dict(zip(_input_keys(node), tensors))
    if hasattr(node, "map_arguments"):  # TensorFlow 2.4+
        return node.map_arguments({key: _Always([tensor]) for key, tensor in given.items()})

    def mapped(t):
        return given.get(str(id(t)), t)

    inputs = tf.nest.map_structure(mapped, node.input_tensors)
    return (inputs,), tf.nest.map_structure(mapped, dict(node.arguments or {}))


def forget_functions(model):
    """Drop the functions that `compile` and `fit` made of the model's old call."""
    for name in ("train_function", "test_function", "predict_function", "train_tf_function"):
        if vars(model).get(name) is not None:
            setattr(model, name, None)
    cache = getattr(model, "_distributed_function_cache", None)  # TensorFlow 2.0 and 2.1
    if cache:
        cache.clear()
