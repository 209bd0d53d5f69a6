"""What autodiff keeps of each call of a model for the backward pass, with and without blocks.

A tensor counts once, where it is made: if the gradient of a call reads it that is in no block, or if a block
reads it that does not make it, which needs it to run again.
"""

from collections import Counter
from typing import List, NamedTuple, Optional

from keras_remat.planning.calls import KEPT, Segment


class LayerRow(NamedTuple):
    """One call of a layer.

    Attributes:
      name: of the layer.
      kind: the name of its class.
      block: the number of the block that it is in, counted from 1; None if it is in none.
      before_bytes: what is kept of the call without recomputation.
      after_bytes: what is kept of it now.
    """

    name: str
    kind: str
    block: Optional[int]
    before_bytes: int
    after_bytes: int


class BlockRow(NamedTuple):
    """A block: calls that are recomputed together.

    Attributes:
      first, last: names of the first and the last layer.
      calls: how many they are.
      saved_bytes: how much more would be kept if this block alone were not recomputed.
    """

    first: str
    last: str
    calls: int
    saved_bytes: int


class Kept(NamedTuple):
    """What is kept of a model's calls."""

    layers: List[LayerRow]
    blocks: List[BlockRow]


def kept(calls, plan, kinds):
    """Return what is `Kept` of calls.

    Args:
      calls: `Calls`.
      plan: `Segment`s that follow each other from the first call to the last.
      kinds: of each call, the name of its layer's class.

    Example: four calls that need their inputs, of which the middle two are a block.
        >>> from keras_remat.planning.calls import RECOMPUTED, chain
        >>> plan = [Segment(0, 1, KEPT), Segment(1, 3, RECOMPUTED), Segment(3, 4, KEPT)]
        >>> found = kept(chain([5, 3, 2, 4]), plan, ["Dense"] * 4)
        >>> [(row.before_bytes, row.after_bytes) for row in found.layers]
        [(5, 5), (3, 0), (2, 2), (0, 0)]
        >>> found.blocks
        [BlockRow(first='1', last='2', calls=2, saved_bytes=3)]
    """
    before = _held(calls, Segment(0, len(calls.costs), KEPT))
    reasons = Counter(key for segment in plan for key in _held(calls, segment))
    layers: List[LayerRow] = []
    blocks: List[BlockRow] = []
    for segment in plan:
        costs, is_block = calls.costs[segment.start : segment.stop], segment.how != KEPT
        if is_block:
            saved = _saved(calls, segment, reasons)
            blocks.append(BlockRow(costs[0].name, costs[-1].name, len(costs), saved))
        for cost, kind in zip(costs, kinds[segment.start : segment.stop]):
            first, now = (_size(calls, [k for k in cost.outputs if k in held]) for held in (before, reasons))
            inner = 0 if is_block else cost.inner
            number = len(blocks) if is_block else None
            layers.append(LayerRow(cost.name, kind, number, cost.inner + first, inner + now))
    return Kept(layers, blocks)


def _held(calls, segment):
    """The tensors that calls make of which a segment is a reason to be kept."""
    costs = calls.costs[segment.start : segment.stop]
    if segment.how == KEPT:
        wanted = {key for cost in costs for key in cost.needs}
    else:
        made = {key for cost in costs for key in cost.outputs}
        wanted = {key for cost in costs for key in cost.inputs if key not in made}
    return {key for key in wanted if key in calls.sizes}


def _saved(calls, segment, reasons):
    """The bytes that are kept if a block is not recomputed, less those if it is."""

    def only(segment):
        return {key for key in _held(calls, segment) if reasons[key] - (key in held) == 0}

    held = _held(calls, segment)
    kept = only(segment._replace(how=KEPT, inside=()))
    inner = sum(cost.inner for cost in calls.costs[segment.start : segment.stop])
    return inner + _size(calls, kept) - _size(calls, only(segment))


def _size(calls, keys):
    return sum(calls.sizes[key] for key in keys)


def totals(rows):
    """Return the bytes kept before and after, of rows together.

    Example:
        >>> totals([LayerRow("a", "Dense", None, 5, 4), LayerRow("b", "Dense", 1, 3, 0)])
        (8, 4)
    """
    return sum(row.before_bytes for row in rows), sum(row.after_bytes for row in rows)
