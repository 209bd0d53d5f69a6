"""A model as a list of calls, and what is alive at each place where it could be cut."""

from keras_remat.families.base import Segment
from keras_remat.planning import calls as planned


def last_uses(calls, outputs):
    """Return, for each call, the position of the last call that reads what it puts out.

    Args:
      calls: list of `families.base.Call` in topological order.
      outputs: keys of the model's output tensors; they are read at position `len(calls)`.
    """
    made_at = {key: i for i, call in enumerate(calls) for key in call.outputs}
    last = list(range(len(calls)))
    for i, call in enumerate(calls):
        for key in call.inputs:
            if key in made_at:
                last[made_at[key]] = max(last[made_at[key]], i)
    for key in outputs:
        if key in made_at:
            last[made_at[key]] = len(calls)
    return last


def segments(calls, outputs, blocks):
    """Return the calls as `families.base.Segment`s: one for each block, one for each other call.

    Args:
      blocks: list of `planning.calls.Segment`s that are recomputed, in order.
    """
    return [_segment(calls, outputs, block) for block in _with_others(blocks, 0, len(calls))]


def _with_others(blocks, start, stop):
    """List blocks, and each call from `start` to before `stop` that is in none."""
    found, position = [], start
    for block in blocks:
        found += [planned.Segment(i, i + 1, planned.KEPT) for i in range(position, block.start)]
        found.append(block)
        position = block.stop
    return found + [planned.Segment(i, i + 1, planned.KEPT) for i in range(position, stop)]


def _segment(calls, outputs, block):
    start, stop = block.start, block.stop
    made = {key for call in calls[start:stop] for key in call.outputs}
    read = [key for call in calls[start:stop] for key in call.inputs if key not in made]
    later = {key for call in calls[stop:] for key in call.inputs} | set(outputs)
    given = [key for call in calls[start:stop] for key in call.outputs if key in later]
    again = [s for s in block.inside if s.how == planned.RECOMPUTED]
    inside = [_segment(calls, outputs, s) for s in _with_others(again, start, stop)] if again else []
    return Segment(
        tuple(calls[start:stop]),
        tuple(dict.fromkeys(read)),
        tuple(dict.fromkeys(given)),
        block.how == planned.RECOMPUTED,
        tuple(inside),
    )
