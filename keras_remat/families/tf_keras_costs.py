"""How tf.keras 2 and tf_keras have the costs of a call traced, so that nothing of it stays behind."""

import contextlib

import tensorflow as tf

from keras_remat.families import costs, segments, tf_keras_models

_LISTS = ("_losses", "_eager_losses", "_updates", "_callable_losses")


def input_specs(family, model, size):
    """Return {key: (shape, dtype)} of the tensors that a model takes, None if they are not known yet.

    Nor before TensorFlow 2.4, whose loops and nodes are others.
    """
    inputs = getattr(model, "inputs", None)
    nodes = family.find_module("engine.node")
    if not inputs or not hasattr(getattr(nodes, "Node", None), "map_arguments"):
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
        return costs.trace(family, call, run_call, specs, wanted, masked)


@contextlib.contextmanager
def _unchanged(family, layers):
    """Let lists of layers be what they were, and seeds of random layers, which calls move since 2.9."""
    lists = [getattr(layer, name, None) for layer in layers for name in _LISTS]
    before = [(held, list(held)) for held in lists if isinstance(held, list)]
    kind = getattr(family.module("backend"), "RandomGenerator", ())
    generators = [value for layer in layers for value in vars(layer).values() if isinstance(value, kind)]
    seeds = [(generator, dict(vars(generator))) for generator in generators]
    try:
        yield
    finally:
        for held, items in before:
            held[:] = items
        for generator, attributes in seeds:
            vars(generator).update(attributes)


def arguments_of(call):
    """Describe what a call is given, each tensor by its position among the call's inputs."""
    if call.node is call.layer:  # of a Sequential
        return ""
    given = {key: tf_keras_models.Always([f"tensor {i}"]) for i, key in enumerate(call.inputs)}
    return str(call.node.map_arguments(given))
