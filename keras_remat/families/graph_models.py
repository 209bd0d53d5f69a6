"""Convert a model whose TensorFlow graph is built already: Keras 2.3.1, and tf.keras 1.x in graph mode.

Calling layers again would draw new seeds and add their updates and losses a second time. The graph says
exactly what the model computes, so its ops are rebuilt segment by segment (see `replay.rebuild`) and what
Keras holds of the old graph (outputs, losses, updates, metrics, the compiled loss) is replaced by what
stands for it in the new one. Inputs, targets, sample weights and variables are the same ones.
"""

import tensorflow as tf

from keras_remat.families import graph_parts, graph_subclassed, places, wrapping
from keras_remat.families.base import Call
from keras_remat.replay import graph as replay_graph
from keras_remat.replay import rebuild, subgraph

_REBUILT = "_keras_remat_rebuilt"  # on a model: (what was replaced, the rebuild)
_FUNCTIONS = ("train_function", "test_function", "predict_function")


def calls(family, model):
    """List the calls of a model with a graph, None for others.

    A model of Keras 2.3.1 that is called twice on the same tensors runs once: the second call makes nothing.
    """
    if not getattr(model, "_is_graph_network", False):
        return None
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth]]
    made = {}
    for node in nodes:
        if tf.nest.flatten(node.inbound_layers):
            call = _call_of(family, node)
            made.setdefault(call.outputs, call)
    return list(made.values())


def _call_of(family, node):
    size = wrapping.size_of([tuple(t.shape.as_list()) for t in tf.nest.flatten(node.output_tensors)])
    layer = node.outbound_layer
    inner = family.sublayers(layer)
    depth = max(1, sum(1 for x in inner if len(family.sublayers(x)) == 1))
    return Call(layer, _keys(node.input_tensors), _keys(node.output_tensors), size, size * depth, node)


def _keys(tensors):
    return tuple(subgraph.key(t) for t in tf.nest.flatten(tensors))


def input_specs(model, size):
    """Return {key: (shape, dtype)} of the tensors that a model takes, None if it has no graph of layers."""
    if not getattr(model, "_is_graph_network", False):
        return None
    specs = [(size(i, tuple(t.shape.as_list())), t.dtype) for i, t in enumerate(model.inputs)]
    return dict(zip(_keys(model.inputs), specs))


def output_keys(model):
    """List the keys of a model's outputs."""
    return list(_keys(model.outputs))


def settle(family, model):
    """Make what Keras holds of the model's graph follow what was noted on it and the layers in it."""
    inner = [x for x in family.sublayers(model) if x is not model and _REBUILT in vars(x)]
    for other in [model] + inner:
        if _REBUILT in vars(other):
            _put_back(family, other)
    _settle_one(family, model)
    for other in inner:  # converted by itself before
        _settle_one(family, other)


def _settle_one(family, model):
    if graph_subclassed.was_called(model):
        graph_subclassed.call_anew(family, model)
    elif getattr(model, "_is_graph_network", False) and graph_parts.is_to_be_cut(family, model):
        _rebuild(family, model)


def _rebuild(family, model):
    graph = model.outputs[0].graph
    phase = [t for t in [family.symbolic_phase()] if isinstance(t, tf.Tensor)]
    work = rebuild.Rebuild(graph, fixed=list(model.inputs) + phase)
    parts = graph_parts.parts(family, work, model)
    owner = {op.name: i for i, part in enumerate(parts) for op in part.ops}
    losses = [[] for _ in parts]
    fed = {op.name for op in work.behind(model.inputs, [op for part in parts for op in part.ops])}
    for loss in places.losses(family, model, graph):
        found = work.reach([loss.op])
        owners = [owner[o.name] for o in _around(found, loss.op) if o.name in fed]
        if owners:
            last = max(owners)
            parts[last].ops[:] = sorted(parts[last].ops + found, key=lambda op: op._id)
            owner.update((op.name, last) for op in found)
            losses[last].append(loss)
    total = places.total_loss(model)
    tail = work.reach([total.op]) if total is not None else []
    owner.update((op.name, len(parts)) for op in tail)
    read = {subgraph.key(t) for t in model.outputs}
    for i, part in enumerate(parts):
        work.copy(part.ops, repeatable=part.is_repeated)
        for first in part.blocks:
            block = [op for p in parts[first : i + 1] for op in p.ops]
            made = {key for held in losses[first : i + 1] for key in _keys(held)}
            _recompute(work, _crossing(block, i, owner, read | made), block)
    work.copy(tail, repeatable=False)
    _replace(family, model, work)


def _around(found, op):
    """List the ops whose results `found` reads, and `op` if it is not in `found`."""
    return [op] + [t.op for o in found for t in o.inputs]


def _crossing(block, last, owner, read):
    """List the tensors of a block that are read after its `last` part, and that have a gradient."""
    return [
        t
        for op in block
        for t in op.outputs
        if t.dtype.base_dtype.is_floating
        and (subgraph.key(t) in read or any(owner.get(c.name, -1) > last for c in t.consumers()))
    ]


def _recompute(work, outputs, block):
    if outputs:
        names = {work.operation(op).name for op in block}
        names |= {work.tensor(t).op.name for op in block for t in op.outputs}  # of blocks inside
        with work.graph.as_default():
            results = replay_graph.recompute([work.tensor(t) for t in outputs], [], names)
        work.replace(outputs, results)


def _replace(family, model, work):
    """Put what was rebuilt in the places of what it stands for; note what was there."""
    replaced = places.replace_outputs(model, work)
    for place in places.all_of(family, model):
        old = place.get()
        new = places.translated(old, work)
        if new is not old:
            place.put(new)
            replaced.append((place, old, new))
    vars(model)[_REBUILT] = (replaced, work)


def _put_back(family, model):
    """Put everything back; what was compiled on the rebuilt outputs is rebuilt on the old ones."""
    replaced, work = vars(model).pop(_REBUILT)
    for place, old, new in replaced:
        if place.is_there() and place.get() is new:
            place.put(old)
    back = work.reversed()
    for place in places.all_of(family, model):
        old = place.get()
        new = places.translated(old, back)
        if new is not old:
            place.put(new)


def keep_slots(family, model, change):
    """Call `change()`; drop the functions that Keras made of the old graph, and keep an optimizer's slots."""
    had_training = getattr(model, "train_function", None) is not None
    optimizer = getattr(model, "optimizer", None)
    makes_slots = had_training and optimizer is not None and not hasattr(optimizer, "_create_slots")
    values = optimizer.get_weights() if makes_slots else None
    change()
    for name in _FUNCTIONS:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    if makes_slots:  # each training function makes some of its own
        family.in_graph(model._make_train_function)
        optimizer.set_weights(values)
