"""How a model is cut into blocks now: by `recompute_all`, or by the wrapper layers that it was built with."""

from keras_remat.families.base import Call
from keras_remat.layers import RUNTIME, Recompute, RecomputeSequential
from keras_remat.planning import models
from keras_remat.planning.calls import KEPT, RECOMPUTED, Segment, moved


def cut_of(family, model, tensors):
    """Return the `models.Cut` of a model as it is now, with the costs of its calls without recomputation.

    Args:
      tensors: `costs.Tensors` that the model takes, to which those that it makes are added, or `Estimates`.
    """
    calls, blocks = _calls(family, model)
    outputs = _output_keys(family, model)
    costs = tensors.calls(calls, outputs)
    in_blocks = {i for block in blocks for i in range(block.start, block.stop)}
    inner = {
        i: _inner_cut(family, call, tensors)
        for i, call in enumerate(calls)
        if i not in in_blocks and _is_opened(family, call.layer)
    }
    inner_parts = {i: cut.part for i, cut in inner.items()}
    part = models.Part(model, calls, outputs, costs, frozenset(inner), inner_parts, {})
    return models.Cut(part, blocks, inner)


def _inner_cut(family, call, tensors):
    given, inner = models.inside(family, call, tensors)
    cut = cut_of(family, call.layer, inner)
    names = models.names_of(cut.part, call, given, inner, tensors)
    return cut._replace(part=cut.part._replace(names=names))


def _is_opened(family, layer):
    """True for a model whose calls are told one by one: if they are many, or some are in blocks."""
    calls = family.calls(layer) if family.is_model(layer) else None
    if calls is None:
        return False
    return len(calls) >= models.MANY or any(is_block(family, x) for x in family.sublayers(layer))


def is_block(family, layer):
    """True if calls of a layer are blocks, or, of a model, have blocks."""
    return family.is_converted(layer) or isinstance(layer, (Recompute, RecomputeSequential))


def _calls(family, model):
    """List the calls of a model, those of a RecomputeSequential one by one, and its blocks as `Segment`s."""
    segments = family.segments(model)
    calls, blocks = [], []
    if not segments:
        for call in family.calls(model):
            more, found = _expanded(family, call)
            blocks += [moved(block, len(calls)) for block in found]
            calls += more
        return calls, blocks
    for segment in segments:
        more, found = _of_segment(family, segment)
        blocks += [moved(block, len(calls)) for block in found]
        calls += more
    return calls, blocks


def _output_keys(family, model):
    """List the keys that the calls of `_calls` have for what a model puts out.

    Where Keras builds graphs, a conversion makes other tensors of the outputs than its segments name.
    """
    keys, segments = family.output_keys(model), family.segments(model)
    if not segments:
        return keys
    before = [call for segment in segments for call in segment.calls]
    names = {}
    for now, old in zip(family.calls(model), before):
        names.update(zip(now.outputs, old.outputs))
    return [names.get(key, key) for key in keys]


def _of_segment(family, segment):
    """The calls of a family's segment, and the blocks that it is or has."""
    if not segment.is_block:
        return _expanded(family, *segment.calls)
    if not segment.inside:
        calls = [c for call in segment.calls for c in _expanded(family, call)[0]]
        return calls, [Segment(0, len(calls), RECOMPUTED)]
    calls, inside = [], []
    for inner in segment.inside:
        more, found = _of_segment(family, inner)
        inside += [moved(s, len(calls)) for s in found or [Segment(0, len(more), KEPT)]]
        calls += more
    return calls, [Segment(0, len(calls), RECOMPUTED, tuple(inside))]


def _expanded(family, call):
    """The calls that a call stands for, and the blocks among them."""
    layer = call.layer
    if isinstance(layer, RecomputeSequential) and len(call.inputs) == len(call.outputs) == 1:
        keys = [*call.inputs, *((call.outputs[0], i) for i in range(1, len(layer.layers))), *call.outputs]
        calls = [
            Call(inner, (given,), (made,), call.size, call.inside, inner)
            for inner, given, made in zip(layer.layers, keys, keys[1:])
        ]
        bounds = RUNTIME.cut(layer._sizes or [1] * len(calls), layer.segments)
        return calls, [Segment(start, stop, RECOMPUTED) for start, stop in zip(bounds, bounds[1:])]
    is_alone = is_block(family, layer) and family.segments(layer) is None
    return [call], [Segment(0, 1, RECOMPUTED)] if is_alone else []
