"""How tf.keras 2 and tf_keras have the costs of a call traced, so that nothing of it stays behind."""

import contextlib

import tensorflow as tf

from keras_remat.families import costs, segments, tf_keras_models

_LISTS = ("_losses", "_eager_losses", "_updates", "_callable_losses")
# Of cells up to TensorFlow 2.0 the masks, of layers up to 2.6 what their first call was given, for files.
_ATTRIBUTES = (
    "_dropout_mask",
    "_recurrent_dropout_mask",
    "_saved_model_inputs_spec",
    "_saved_model_arg_spec",
)


def input_specs(family, model, size):
    """Return {key: (shape, dtype)} of the tensors that a model takes, None if they are not known yet."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    is_chain = isinstance(model, family.sequential_model_class)
    keys = ["0"] if is_chain else [str(id(t)) for t in inputs]
    specs = [(size(i, tuple(t.shape.as_list())), tf.as_dtype(t.dtype)) for i, t in enumerate(inputs)]
    return dict(zip(keys, specs))


def trace(family, call, specs, wanted, masked):
    """Trace a call with inputs of shapes and dtypes `specs`; see `costs.trace`."""
    layers = [call.layer]

    def run_call(values, tensors):
        if call.node is call.layer:  # of a Sequential
            segments.run_chain_call(call, tensors, True)
        else:
            tf_keras_models.run_call(call, tensors, True, explicit=True)

    with family.entered(family.call_state(layers)), _unchanged(family, family.all_sublayers(layers)):
        values = family.backend.trained_references(family.variables(layers))
        return costs.trace(family, call, run_call, specs, wanted, masked, values)


@contextlib.contextmanager
def _unchanged(family, layers):
    """Let layers be what they were, and seeds of random layers, which calls move since 2.9."""
    lists = [getattr(layer, name, None) for layer in layers for name in _LISTS]
    before = [(values, list(values)) for values in lists if isinstance(values, list)]
    kind = getattr(family.module("backend"), "RandomGenerator", ())
    generators = [value for layer in layers for value in vars(layer).values() if isinstance(value, kind)]
    held = [(generator, dict(vars(generator))) for generator in generators]
    held += [(x, {name: vars(x)[name] for name in _ATTRIBUTES if name in vars(x)}) for x in layers]
    try:
        yield
    finally:
        for values, items in before:
            values[:] = items
        for holder, attributes in held:
            vars(holder).update(attributes)


def arguments_of(call):
    """Describe what a call is given, each tensor by its position among the call's inputs."""
    if call.node is call.layer:  # of a Sequential
        return ""
    return str(tf_keras_models.arguments(call.node, [f"tensor {i}" for i in range(len(call.inputs))]))
