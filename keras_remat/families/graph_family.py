"""What a family answers about conversion if its Keras builds a graph when a model is made."""

from keras_remat.errors import RematError
from keras_remat.families import graph_models, graph_parts


class GraphConversion:
    """Mixed into a `Family`: what is asked for is noted first, then the graph is rebuilt accordingly."""

    def calls(self, model):
        return graph_models.calls(self, model)

    def output_keys(self, model):
        return graph_models.output_keys(model)

    def input_specs(self, model, size):
        return graph_models.input_specs(model, size)

    def convert(self, model, segments, runtime):
        graph_parts.convert(model, segments)

    def restore(self, layer):
        graph_parts.restore(layer)

    def is_converted(self, layer):
        return graph_parts.is_converted(layer)

    def segments(self, model):
        return graph_parts.segments(model)

    def slots(self, optimizer):
        raise RematError(
            "What an optimizer keeps is asked of one that makes variables at once, as this Keras's do not. "
            f"Received: a model that was compiled with {type(optimizer).__name__}. Find its largest batch "
            "before it is compiled, for Adam, which keeps two slots for each weight."
        )

    def forget_functions(self, model):
        graph_models.keep_slots(self, model, lambda: self.in_graph(graph_models.settle, self, model))

    def in_graph(self, function, *args):
        """Call `function` where Keras builds its graph."""
        raise NotImplementedError

    def symbolic_phase(self):
        """Return the tensor that tells training from prediction, or a number."""
        raise NotImplementedError

    def tensors_inside(self, model, ops, outputs):
        """Find the tensors of a call of `model` that `ops` compute, by the keys of its own; or None."""
        raise NotImplementedError
