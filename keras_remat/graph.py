"""A model as a list of calls, and what is alive at each place where it could be cut."""

from keras_remat.families.base import Segment


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
    """Return the calls as `Segment`s: one for each (start, stop) of `blocks`, one for each other call."""
    bounds, position = [], 0
    for start, stop in list(blocks) + [(len(calls), len(calls))]:
        bounds += [(i, i + 1, False) for i in range(position, start)]
        bounds += [(start, stop, True)] if stop > start else []
        position = stop
    return [_segment(calls, outputs, *bound) for bound in bounds]


def _segment(calls, outputs, start, stop, is_block):
    made = {key for call in calls[start:stop] for key in call.outputs}
    read = [key for call in calls[start:stop] for key in call.inputs if key not in made]
    later = {key for call in calls[stop:] for key in call.inputs} | set(outputs)
    given = [key for call in calls[start:stop] for key in call.outputs if key in later]
    return Segment(
        tuple(calls[start:stop]), tuple(dict.fromkeys(read)), tuple(dict.fromkeys(given)), is_block
    )
