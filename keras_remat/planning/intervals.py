"""What each run of consecutive calls keeps, lets out and takes, for all of them at once.

A solver asks for the same few numbers of every segment [i, j). Each tensor counts in all segments that
hold its maker and end within some range, which is a rectangle in a table of starts and ends; so a table is
the running sum of the corners of as many rectangles as there are tensors, O(n² + edges) in all.

A tensor that is read or needed outside is charged once, to the segment that makes it: it waits there as
itself, and later as its gradient (see `simulate`).
"""

from typing import NamedTuple

import numpy as np

NEVER = 1 << 60  # more bytes than there are


class Intervals(NamedTuple):
    """Tables over segments from cut `a` (row) to cut `b` (column); entries with b <= a mean nothing.

    Args:
      cuts: the positions that a and b stand for, from 0 to the number of calls.
      inside: bytes that plain execution keeps: inner ones, and tensors of the segment that it needs itself.
      leaving: bytes of tensors of the segment that are read after it; what it leaves if recomputed.
      both: bytes of the union of the two; what it leaves if kept.
      held_kept, held_again: the most bytes held while its gradients run, if kept or recomputed, above what
        the segments before it leave. Where cuts leave out positions, `held_again` may be a little too much.
      extra: what running it again costs, in FLOP equivalents.
      keeping, passing: the most bytes held above cut a while the calls from cut d (column) to the next run in
        a second run that keeps all or nothing from a on, with places for gradients of what crosses the next.
    """

    cuts: np.ndarray
    inside: np.ndarray
    leaving: np.ndarray
    both: np.ndarray
    held_kept: np.ndarray
    held_again: np.ndarray
    extra: np.ndarray
    keeping: np.ndarray
    passing: np.ndarray


class _Uses(NamedTuple):
    """For each tensor that a call makes: bytes, maker, last reader, first call that needs it (or n)."""

    size: np.ndarray
    maker: np.ndarray
    last: np.ndarray
    needer: np.ndarray


def _uses(calls):
    n = len(calls.costs)
    number = {key: k for k, key in enumerate(key for cost in calls.costs for key in cost.outputs)}
    maker = [i for i, cost in enumerate(calls.costs) for _ in cost.outputs]
    last, needer = list(maker), [n] * len(maker)
    for i, cost in enumerate(calls.costs):
        for key in cost.inputs:
            if key in number:
                last[number[key]] = i
    for i in reversed(range(n)):
        for key in calls.costs[i].needs:
            if key in number:
                needer[number[key]] = i
    for key in calls.results:
        if key in number:
            last[number[key]] = n
    size = [calls.sizes[key] for key in number]
    return _Uses(*(np.array(column, dtype=np.int64) for column in (size, maker, last, needer)))


def _rectangles(shape, rows, start, stop, value):
    """Add each value to the columns [start, stop) of all rows up to its own, and return the table."""
    table = np.zeros((shape[0], shape[1] + 1), dtype=value.dtype)
    wanted = stop > start
    rows, start, stop, value = rows[wanted], start[wanted], stop[wanted], value[wanted]
    np.add.at(table, (rows, start), value)
    np.subtract.at(table, (rows, stop), value)
    table = np.cumsum(table[:, :-1], axis=1)
    return np.cumsum(table[::-1], axis=0)[::-1]


def _column(calls, name, dtype=np.int64):
    return np.array([getattr(cost, name) for cost in calls.costs], dtype=dtype)


def intervals(calls, cuts=None):
    """Return the `Intervals` of `Calls`, between the given positions or all.

    Example: three calls that need their inputs.
        >>> from keras_remat.planning.calls import chain
        >>> table = intervals(chain([5, 2, 3]))
        >>> table.inside[0].tolist(), table.leaving[0].tolist(), table.held_kept[0].tolist()
        ([0, 0, 5, 7], [0, 5, 2, 3], [0, 5, 12, 12])
    """
    n = len(calls.costs)
    cuts = np.arange(n + 1) if cuts is None else np.asarray(cuts)
    starts, ends = cuts[:-1], cuts[1:] - 1
    uses = _uses(calls)
    block = np.searchsorted(cuts, np.arange(n), side="right") - 1  # of each call
    row, size, shape = block[uses.maker], uses.size, (len(starts), n)
    needed, never = uses.needer < n, np.full_like(size, n)

    inner, transient = _column(calls, "inner"), _column(calls, "transient")
    own = _rectangles(shape, block, np.arange(n), np.full(n, n), inner)
    while_read = np.minimum(uses.last + 1, n)
    inside = own + _rectangles(shape, row, uses.needer, never, size)
    leaving = _rectangles(shape, row, uses.maker, uses.last, size)
    both = own + _rectangles(shape, row, uses.maker, np.where(needed, n, uses.last), size)
    # Above cut a, while call c or its gradient runs: tensors that it reads or makes have a place as well.
    running = own + _rectangles(shape, row, uses.maker, np.where(needed, n, while_read), size)
    passing = inner + _rectangles(shape, row, uses.maker, while_read, size)
    crossing = uses.last > ends[row]
    ahead = _ahead(n, uses.maker[crossing], starts[row[crossing]], size[crossing])

    inside, leaving, both = (_at_cuts(table, ends) for table in (inside, leaving, both))
    keeping, passing = (_most_of_blocks(table + ahead, cuts) for table in (running, passing))
    held_kept = _so_far(_most_of_blocks(running + transient, cuts))
    held_again = np.maximum(held_kept, _with_gradients(keeping, leaving))
    extra = _extra(calls, cuts, block)
    return Intervals(cuts, inside, leaving, both, held_kept, held_again, extra, keeping, passing)


def _ahead(n, maker, start, size):
    """For each call, the bytes of tensors made after it in its block, which starts at `start`."""
    steps = np.zeros(n + 1, dtype=np.int64)
    np.add.at(steps, start, size)
    np.subtract.at(steps, maker, size)
    return np.cumsum(steps)[:-1]


def _at_cuts(table, ends):
    """Keep the columns of the calls before cuts, behind one for the first cut."""
    return np.concatenate([np.zeros((len(table), 1), dtype=table.dtype), table[:, ends]], axis=1)


def _most_of_blocks(moments, cuts):
    """The largest column between each cut and the next, in rows of cuts that are not later."""
    if not moments.size:
        return np.zeros((0, 0), dtype=moments.dtype)
    return np.triu(np.maximum.reduceat(moments, cuts[:-1], axis=1))


def _so_far(most):
    """The largest of the blocks from cut a to before cut b."""
    most = np.maximum.accumulate(most, axis=1)
    return np.concatenate([np.zeros((len(most), 1), dtype=most.dtype), most], axis=1)


def _with_gradients(most, leaving):
    """The most held while a segment runs again, with a place for the gradient of each output to come."""
    held = np.zeros_like(leaving)
    # In block d of a segment up to cut b: what leaves of blocks after d; b <= d means nothing.
    to_come = np.concatenate([leaving[1:], np.zeros_like(leaving[:1])])
    to_come = np.where(np.arange(len(leaving[0])) > np.arange(len(most))[:, None], to_come, -NEVER)
    for a in range(len(most)):
        held[a, a + 1 :] = (most[a, a:, None] + to_come[a:, a + 1 :]).max(axis=0)
    return held


def _extra(calls, cuts, block):
    """The work of running each segment again, less the tails that nothing in it reads."""
    n = len(calls.costs)
    work, tail = _column(calls, "work", float), _column(calls, "tail", float)
    first = {key: n for cost in calls.costs for key in cost.outputs}
    for i in reversed(range(n)):
        first.update({key: i for key in calls.costs[i].inputs if key in first})
    read = [min([n] + [first[key] for key in cost.outputs]) for cost in calls.costs]
    read_block = np.searchsorted(cuts, np.array(read, dtype=np.int64), side="right")
    shape = (len(cuts) - 1, len(cuts))
    free = _rectangles(shape, block, block + 1, np.minimum(read_block, len(cuts)), tail)
    done = np.concatenate([[0.0], np.cumsum(work)])[cuts]
    return done[None, :] - done[:-1, None] - free
