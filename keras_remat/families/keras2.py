"""Standalone Keras 2.3.1 on TensorFlow: always in graph mode, one graph for training and prediction."""

import contextlib

from keras_remat.families import base, graph_parts, keras2_costs, keras2_layers
from keras_remat.families.graph_family import GraphConversion
from keras_remat.replay.wrapping import outside, wrap


class Keras2(GraphConversion, base.Family):
    """Keras up to 2.3.1, which builds a graph once and runs it in sessions or, on TensorFlow 2, functions."""

    has_one_wrapper = True

    def __init__(self, root):
        super().__init__(root)
        wrap(self.layer_class, "add_weight", outside)
        keras2_costs.allow_fixed_phase()

    @property
    def layer_class(self):
        """The base class of this Keras's layers."""
        return self.module("engine.base_layer").Layer

    def make_wrappers(self, runtime):
        return keras2_layers.make_classes(self, runtime)

    def is_inference(self):
        return False  # `fit` and `predict` run the same graph

    def sublayers(self, layer):
        found, pending = {}, [layer]
        while pending:
            layer = pending.pop()
            if id(layer) not in found:
                found[id(layer)] = layer
                pending.extend(reversed(_direct_sublayers(layer, self.layer_class)))
        return list(found.values())

    def loss_lists(self, layer):
        return [layer._losses] + list(layer._per_input_losses.values())

    def variables(self, layers):
        found = {}
        for layer in layers:
            for inner in self.sublayers(layer):
                for variable in inner._trainable_weights + inner._non_trainable_weights:
                    found[id(variable)] = variable
        return list(found.values())

    def call_state(self, layers):
        # On TensorFlow 2 the learning phase is the result of an op, which Keras feeds. Made here, it is no
        # part of the block; a copy of the op would miss what is fed.
        return self.module("backend").learning_phase()

    def entered(self, state):
        return contextlib.nullcontext()

    def symbolic_phase(self):
        return self.module("backend").learning_phase()

    def is_model(self, layer):
        return isinstance(layer, self.module("engine.training").Model)

    def mask_of(self, tensor):
        """Return the mask that a trace keeps for a tensor, or None."""
        return getattr(tensor, "_keras_mask", None)

    def set_mask(self, tensor, mask):
        """Let `mask` be the mask of `tensor`: Keras 2.3.1 itself keeps masks in nodes."""
        tensor._keras_mask = mask

    def trace(self, call, specs, wanted, masked):
        return keras2_costs.trace(self, call, specs, wanted, masked)

    def arguments_of(self, call):
        return str(keras2_costs.arguments_of(call))

    def tensors_inside(self, model, ops, outputs):
        return graph_parts.marked_tensors(self, model, ops, outputs)

    def in_graph(self, function, *args):
        return self.module("backend").symbolic(function)(*args)

    def convertible(self, function, layer):
        return function  # Keras 2.3.1 knows no AutoGraph


_NOT_INSIDE = (
    "_inbound_nodes",
    "_outbound_nodes",
    "_input_layers",
    "_output_layers",
)


def _direct_sublayers(layer, layer_class):
    """List the layers that `layer` holds as attributes or in lists: Keras 2.3.1 has no list of its own."""
    found = []
    for name, value in vars(layer).items():
        if name in _NOT_INSIDE:
            continue
        values = (
            value
            if isinstance(value, (list, tuple))
            else value.values()
            if isinstance(value, dict)
            else [value]
        )
        found.extend(v for v in values if isinstance(v, layer_class))
    return found
