"""Convert a subclassed model of a graph-building Keras that has its graph already: it is called anew.

Such a model is a function that Keras calls once, on its first data, and there is no record of which ops came
from which layer. So it is called again, on inputs like the old ones and with the layers that are blocks now,
and compiled again with what it was compiled with.
"""

from keras_remat.families import places
from keras_remat.replay.rebuild import Rebuild

_COMPILED = {
    "loss": "loss",
    "metrics": "_compile_metrics",
    "weighted_metrics": "_compile_weighted_metrics",
    "loss_weights": "loss_weights",
    "sample_weight_mode": "sample_weight_mode",
}


def was_called(model):
    """True if `model` has a graph, but not one of layers."""
    return bool(getattr(model, "inputs", None)) and not model._is_graph_network


def call_anew(family, model):
    """Call `model` on new inputs, and compile it if it was compiled."""
    backend = family.module("backend")
    inputs = [
        backend.placeholder(shape=backend.int_shape(t), dtype=backend.dtype(t), name=name)
        for t, name in zip(model.inputs, model.input_names)
    ]
    _forget(family, model)
    model.inputs = model.outputs = None
    model._set_inputs(inputs if len(inputs) > 1 else inputs[0])
    if model._is_compiled:
        arguments = {name: getattr(model, attribute) for name, attribute in _COMPILED.items()}
        model.compile(model.optimizer, **arguments)


def _forget(family, model):
    """Take back the updates and losses that the layers inside have of the old inputs: others would follow."""
    held = [values for layer in family.sublayers(model) for values in places.lists(layer)]
    made_by = {id(value): places.op_of(value) for values in held for value in values}
    work = Rebuild(model.inputs[0].graph)
    found = work.reach([op for op in made_by.values() if op is not None])
    old = {op.name for op in work.behind(model.inputs, found)}
    for values in held:
        values[:] = [v for v in values if made_by[id(v)] is None or made_by[id(v)].name not in old]
