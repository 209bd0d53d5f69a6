"""Where Keras holds tensors and ops of a model's graph, and what to put there instead."""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_remat.replay import subgraph

_LISTS = ("_updates", "_losses")
_DICTS = ("_per_input_updates", "_per_input_losses")
_OUTPUTS = ("outputs", "_nested_outputs", "_feed_outputs")
_MARKS = (
    "_keras_history",
    "_keras_shape",
    "_uses_learning_phase",
    "_metric_obj",
    "_unconditional_loss",
)


class Place(NamedTuple):
    """An attribute of an object or an item of a list or dict."""

    holder: Any
    key: Any

    def get(self):
        """Return what is there."""
        return self.holder[self.key] if isinstance(self.holder, (list, dict)) else vars(self.holder)[self.key]

    def is_there(self):
        """True if the place still exists."""
        if isinstance(self.holder, list):
            return self.key < len(self.holder)
        return self.key in (self.holder if isinstance(self.holder, dict) else vars(self.holder))

    def put(self, value):
        """Put `value` there."""
        if isinstance(self.holder, (list, dict)):
            self.holder[self.key] = value
        else:
            vars(self.holder)[self.key] = value  # not by attribute: Keras would track it


def losses(family, model, graph):
    """List the loss tensors that the model and the layers in it hold, each once."""
    found = {}
    for layer in family.sublayers(model):
        for values in family.loss_lists(layer):
            for value in values:
                if isinstance(value, tf.Tensor) and value.graph is graph:
                    found.setdefault(subgraph.key(value), value)
    return list(found.values())


def total_loss(model):
    """Return the loss tensor of a compiled model, or None."""
    total = getattr(model, "total_loss", None)
    return total if isinstance(total, tf.Tensor) else None


def all_of(family, model):
    """List the places of a model and of the layers and metrics in it."""
    found = [Place(model, name) for name in _OUTPUTS + ("total_loss",) if name in vars(model)]
    found += [Place(model._output_mask_cache, key) for key in getattr(model, "_output_mask_cache", ())]
    found += [
        Place(n, "output_tensors") for n in model._inbound_nodes if not tf.nest.flatten(n.inbound_layers)
    ]
    for endpoint in getattr(model, "_training_endpoints", None) or ():
        found += [Place(endpoint, name) for name in ("_output",) if name in vars(endpoint)]
    for layer in _with_metrics(family, model):
        found += [Place(values, i) for values in lists(layer) for i in range(len(values))]
        if "_call_result" in vars(layer):
            found.append(Place(layer, "_call_result"))
    return found


def lists(layer):
    """List the lists in which `layer` itself holds updates and losses."""
    found = [vars(layer).get(name) for name in _LISTS]
    found += [values for name in _DICTS for values in vars(layer).get(name, {}).values()]
    return [values for values in found if values]


def op_of(value):
    """Return the op that an update or loss is, or is made by; None if it is neither op nor tensor."""
    if isinstance(value, tf.Tensor):
        return value.op
    return value if isinstance(value, tf.Operation) else getattr(value, "_parent_op", None)


def replace_outputs(model, work):
    """Put the new outputs in the nodes of the layers that make them, on which other models may be built.

    All other nodes stay those of the plain model, which other models may share.

    Returns:
      list of (place, old, new).
    """
    nodes = [node for depth in model._nodes_by_depth.values() for node in depth]
    makers = {id(n): n for n in (_node_of(t) for t in model.outputs)}
    made = {id(t) for n in makers.values() for t in tf.nest.flatten(n.output_tensors)}
    replaced = []
    for node in nodes:
        for name in ("input_tensors", "output_tensors"):
            old = getattr(node, name)
            flat = [translated(t, work) if id(t) in made else t for t in tf.nest.flatten(old)]
            if any(a is not b for a, b in zip(flat, tf.nest.flatten(old))):
                new = tf.nest.pack_sequence_as(old, flat)
                Place(node, name).put(new)
                replaced.append((Place(node, name), old, new))
                if name == "input_tensors":
                    _alias(node.outbound_layer, old, new)
    return replaced


def _node_of(tensor):
    layer, node_index = tensor._keras_history[:2]
    return layer._inbound_nodes[node_index]


def _alias(layer, old, new):
    """Keras 2.3.1 finds updates and losses by the identity of inputs: let both find them."""
    before, after = (", ".join(str(abs(id(t))) for t in tf.nest.flatten(x)) for x in (old, new))
    for name in _DICTS:
        lists = vars(layer).get(name, {})
        if before in lists:
            lists[after] = lists[before]


def _with_metrics(family, model):
    layers = {id(layer): layer for layer in family.sublayers(model)}
    metrics = [m for layer in layers.values() for m in getattr(layer, "_metrics", ())]
    if getattr(model, "optimizer", None) is not None and hasattr(model, "_get_training_eval_metrics"):
        metrics += model._get_training_eval_metrics()
    layers.update((id(m), m) for m in metrics)
    return list(layers.values())


def translated(value, work):
    """Return what stands for `value` (tensor, op, update, or nested tensors) after a rebuild."""
    if isinstance(value, (list, tuple, dict)):
        flat = tf.nest.flatten(value)
        new = [translated(v, work) for v in flat]
        if all(a is b for a, b in zip(flat, new)):
            return value
        return tf.nest.pack_sequence_as(value, new)
    if isinstance(value, tf.Tensor):
        work.copy(work.reach([value.op]), repeatable=False)
        return _marked(work.tensor(value), value, work)
    op = op_of(value)
    if op is None:
        return value
    work.copy(work.reach([op]), repeatable=False)
    new = work.operation(op)
    if new is op:
        return value
    if hasattr(value, "_unconditional_update"):
        new._unconditional_update = value._unconditional_update
    return new


def _marked(new, old, work):
    """Give `new` the marks that Keras keeps on `old`."""
    if new is not old:
        for name in _MARKS:
            if hasattr(old, name):
                setattr(new, name, getattr(old, name))
        if getattr(old, "_keras_mask", None) is not None:
            new._keras_mask = translated(old._keras_mask, work)
    return new
