"""Convert a model whose TensorFlow graph is built already: Keras 2.3.1, and tf.keras 1.x in graph mode.

Calling layers again would draw new seeds and add their updates and losses a second time. The graph says
exactly what the model computes, so its ops are rebuilt segment by segment (see `replay.rebuild`) and what
Keras holds of the old graph (outputs, losses, updates, metrics, the compiled loss) is replaced by what
stands for it in the new one. Inputs, targets, sample weights and variables are the same ones.
"""

import tensorflow as tf

from keras_remat.families import places, wrapping
from keras_remat.families.base import Call
from keras_remat.replay import graph as replay_graph
from keras_remat.replay import rebuild, subgraph

SEGMENTS = "_keras_remat_segments"  # on a model: how it is to be run
_REPLACED = "_keras_remat_replaced"  # on a model: what was replaced, as (place, old, new)


def calls(family, model):
    """List the calls of a model with a graph, None for others."""
    if not getattr(model, "_is_graph_network", False):
        return None
    depths = sorted(model._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in model._nodes_by_depth[depth]]
    return [_call_of(family, node) for node in nodes if tf.nest.flatten(node.inbound_layers)]


def _call_of(family, node):
    size = wrapping.size_of([tuple(t.shape.as_list()) for t in tf.nest.flatten(node.output_tensors)])
    layer = node.outbound_layer
    inner = family.sublayers(layer)
    depth = max(1, sum(1 for x in inner if len(family.sublayers(x)) == 1))
    return Call(layer, _keys(node.input_tensors), _keys(node.output_tensors), size, size * depth, node)


def _keys(tensors):
    return tuple(subgraph.key(t) for t in tf.nest.flatten(tensors))


def output_keys(model):
    """List the keys of a model's outputs."""
    return list(_keys(model.outputs))


def convert(model, segments):
    """Note that `model` is to run `segments`; `settle` makes it so."""
    vars(model)[SEGMENTS] = segments


def restore(model):
    """Note that `model` is to run as it was built; `settle` makes it so."""
    vars(model).pop(SEGMENTS)


def is_converted(model):
    """True if `model` is to run in segments."""
    return SEGMENTS in vars(model)


def settle(family, model):
    """Make what Keras holds of the model's graph follow what was noted by `convert` and `restore`."""
    if _REPLACED in vars(model):
        _put_back(family, model)
    if SEGMENTS in vars(model):
        _rebuild(family, model, vars(model)[SEGMENTS])


def _rebuild(family, model, segments):
    graph = model.outputs[0].graph
    phase = [t for t in [family.symbolic_phase()] if isinstance(t, tf.Tensor)]
    work = rebuild.Rebuild(graph, fixed=list(model.inputs) + phase)
    parts = [work.reach([t.op for t in _made(segment, graph)]) for segment in segments]
    owner = {op.name: i for i, part in enumerate(parts) for op in part}
    losses = [[] for _ in segments]
    for loss in places.losses(family, model, graph):
        found = work.reach([loss.op])
        owners = [owner[o.name] for o in _around(found, loss.op) if o.name in owner]
        if owners:
            last = max(owners)
            parts[last] = sorted(parts[last] + found, key=lambda op: op._id)
            owner.update((op.name, last) for op in found)
            losses[last].append(loss)
    total = places.total_loss(model)
    tail = work.reach([total.op]) if total is not None else []
    owner.update((op.name, len(segments)) for op in tail)
    read = {subgraph.key(t) for t in model.outputs}
    for i, segment in enumerate(segments):
        work.copy(parts[i], repeatable=segment.is_block)
        if segment.is_block:
            outputs = _crossing(parts[i], i, owner, read | {subgraph.key(t) for t in losses[i]})
            with graph.as_default():
                _recompute(work, outputs, parts[i])
    work.copy(tail, repeatable=False)
    _replace(family, model, work)


def _made(segment, graph):
    """List the tensors, masks included, that the calls of a segment put out."""
    found = []
    for call in segment.calls:
        tensors = tf.nest.flatten(call.node.output_tensors)
        masks = tf.nest.flatten(getattr(call.node, "output_masks", None))
        masks += [getattr(t, "_keras_mask", None) for t in tensors]
        found += [t for t in tensors + masks if isinstance(t, tf.Tensor) and t.graph is graph]
    return found


def _around(found, op):
    """List the ops whose results `found` reads, and `op` if it is not in `found`."""
    return [op] + [t.op for o in found for t in o.inputs]


def _crossing(part, number, owner, read):
    """List the tensors of a segment that are read after it and that a gradient may go through."""
    return [
        t
        for op in part
        for t in op.outputs
        if t.dtype.base_dtype.is_floating
        and (subgraph.key(t) in read or any(owner.get(c.name, -1) > number for c in t.consumers()))
    ]


def _recompute(work, outputs, part):
    if outputs:
        names = {work.operation(op).name for op in part}
        results = replay_graph.recompute([work.tensor(t) for t in outputs], [], names)
        work.tensors.update(zip(map(subgraph.key, outputs), results))


def _replace(family, model, work):
    """Put what was rebuilt in the places of what it stands for; note what was there."""
    replaced = []
    for place in places.all_of(family, model):
        old = place.get()
        new = places.translated(old, work)
        if new is not old:
            place.put(new)
            replaced.append((place, old, new))
    vars(model)[_REPLACED] = replaced


def _put_back(family, model):
    for place, old, new in vars(model).pop(_REPLACED):
        if place.get() is new:
            place.put(old)
    # What was compiled since then reads the replaced outputs: rebuild it on the old ones.
    # (see places.translated)


def renew_functions(family, model):
    """Drop the functions that Keras made of the old graph; an optimizer's slots keep their values."""
    had_training = getattr(model, "train_function", None) is not None
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    optimizer = getattr(model, "optimizer", None)
    if had_training and optimizer is not None and not hasattr(optimizer, "_create_slots"):
        values = optimizer.get_weights()  # each training function has slots of its own
        family.in_graph(model._make_train_function)
        optimizer.set_weights(values)
