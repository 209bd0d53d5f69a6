"""tf.keras without eager execution: TensorFlow 1.14 and 1.15 as they come."""

import tensorflow as tf

from keras_remat.families.graph_family import GraphConversion
from keras_remat.families.tf_keras import TFKeras


class TFKerasGraph(GraphConversion, TFKeras):
    """tf.keras that builds the graph of a model when the model is made."""

    def in_graph(self, function, *args):
        with self.module("backend").get_graph().as_default():
            return function(*args)

    def trace(self, call, specs, wanted, masked):
        with self.module("backend").learning_phase_scope(1):
            return super().trace(call, specs, wanted, masked)

    def symbolic_phase(self):
        return self.module("backend").learning_phase()

    def tensors_inside(self, model, ops, outputs):
        """Find them by the nodes that Keras made for the layers inside."""
        names = {op.name for op in ops}
        found, taken = {}, {}
        for call in self.calls(model):
            nodes = taken.get(id(call.layer))
            if nodes is None:
                nodes = [n for n in call.layer._inbound_nodes if _is_made_by(n, names)]
                taken[id(call.layer)] = nodes = sorted(nodes, key=_age)
            if not nodes:
                return None
            found.update(zip(call.outputs, tf.nest.flatten(nodes.pop(0).output_tensors)))
        return None if any(taken.values()) else found


def _is_made_by(node, names):
    return all(t.op.name in names for t in tf.nest.flatten(node.output_tensors))


def _age(node):
    return min(t.op._id for t in tf.nest.flatten(node.output_tensors))
