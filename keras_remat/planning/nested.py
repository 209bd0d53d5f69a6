"""Segments inside segments, for budgets that one recomputation cannot meet.

A second run need not keep all that it makes: it may itself be cut into segments, some of which run a third
time, and so on; both memory and work then grow like log n. For chains this is what Beaumont et al. solve
(rotor, 2019, https://arxiv.org/abs/1911.13214); here cuts may be crossed by several tensors. The general
problem, any call at any time, is an integer program (Jain et al., Checkmate, 2020,
https://arxiv.org/abs/1910.02653), which takes minutes where this takes less than a second.

Problem [i, j) is to run these calls and then their gradients, in so many bytes above what is left before i.
It starts with a segment [i, k) that is kept, or passed through and solved as a problem of its own once
[k, j) is done. There are n³ such choices, so long models are first cut into blocks.
"""

from typing import NamedTuple

import numpy as np

from keras_remat.planning.calls import KEPT, RECOMPUTED, Segment
from keras_remat.planning.intervals import intervals
from keras_remat.planning.one_level import merged
from keras_remat.planning.slots import Slots

BLOCKS = 48


class Problems(NamedTuple):
    """All problems between the cuts of a table.

    Args:
      table: `Intervals`.
      keeping, passing: by start, end of the first segment and end of the problem: the most bytes while the
        first segment runs, with places for gradients of what the problem puts out.
      least: by start and end, the least bytes that the problem takes.
    """

    table: NamedTuple
    keeping: np.ndarray
    passing: np.ndarray
    least: np.ndarray


def problems(calls, cuts):
    """Return the `Problems` of `Calls` between the given positions, each with the least bytes it takes.

    Example: with one recomputation, eight calls in a row take 5 bytes at least.
        >>> from keras_remat.planning.calls import chain
        >>> problems(chain([1] * 8), range(9)).least[0, 8].item()
        3
    """
    table = intervals(calls, np.asarray(list(cuts)))
    m = len(table.cuts) - 1
    found = Problems(
        table,
        _while_running(table.keeping, table.leaving),
        _while_running(table.passing, table.leaving),
        np.zeros((m + 1, m + 1), dtype=np.int64),
    )
    for i, j in _by_length(m):
        kept, again = _first_segments(found, i, j)
        found.least[i, j] = min(
            np.maximum(kept.held, kept.left + found.least[kept.ends, j]).min(),
            np.maximum(again.held, again.left + found.least[again.ends, j]).min()
            if j > i + 1
            else kept.held[-1],
        )
    return found


def solve(found, budget):
    """Return the `Segment`s that stay within `budget` bytes with the least extra work, or None.

    Args:
      found: `Problems`.
      budget: bytes.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> plan = solve(problems(chain([1] * 8), range(9)), 4)
        >>> [(s.start, s.stop) for s in plan], [(s.start, s.stop) for s in plan[0].inside]
        ([(0, 5), (5, 7), (7, 8)], [(0, 3), (3, 5)])
    """
    m = len(found.table.cuts) - 1
    if budget < found.least[0, m]:
        return None
    most = np.zeros_like(found.least)
    for i, j in _by_length(m):
        most[i, j] = _first_segments(found, i, j)[0].held[-1]
    work = Slots(found.least, np.maximum(found.least, np.minimum(most, budget)), max(64, min(512, 4096 // m)))
    for i, j in _by_length(m):
        work.work[i, j] = _best(found, work, i, j, work.rooms((i, j)))[0]
    return merged(_plan(found, work, 0, m, budget))


def _by_length(m):
    return ((i, i + length) for length in range(1, m + 1) for i in range(m + 1 - length))


def _while_running(most, leaving):
    """The most held while a segment runs in a problem that ends at or after it: [start, stop, end]."""
    m = len(most)
    held = np.zeros((m, m + 1, m + 1), dtype=np.int64)
    to_come = np.concatenate([leaving[1:], np.zeros_like(leaving[:1])])
    for a in range(m):
        held[a, a + 1 :] = np.maximum.accumulate(most[a, a:, None] + to_come[a:], axis=0)
    held[:, :, m] = 0  # the first run: there are no gradients yet, and more is held when they come
    return held


class _First(NamedTuple):
    """The first segments that a problem may start with: where they stop, and what they hold and leave."""

    ends: np.ndarray
    held: np.ndarray
    left: np.ndarray


def _first_segments(found, i, j):
    """What problem [i, j) may start with: a segment that is kept, or one that is passed through."""
    table, ends = found.table, np.arange(i + 1, j + 1)
    kept = _First(ends, np.maximum(table.held_kept[i, ends], found.keeping[i, ends, j]), table.both[i, ends])
    ends = ends[:-1]
    passed = np.maximum(found.passing[i, ends, j], found.least[i, ends])
    return kept, _First(ends, passed, table.leaving[i, ends])


def _best(found, work, i, j, room):
    """For each amount of `room`: the least work of problem [i, j), and the number of its first segment."""
    table, (kept, again) = found.table, _first_segments(found, i, j)
    ends = again.ends[:, None]
    on_its_own = table.extra[i, ends] + work.read((np.full_like(ends, i), ends), room + 0 * ends)
    options = np.concatenate(
        [_work_after(work, kept, j, room), on_its_own + _work_after(work, again, j, room)]
    )
    best = np.argmin(options, axis=0)
    return options[best, np.arange(len(room))], best


def _work_after(work, first, j, room):
    """The work of what comes after each first segment (row) of a problem that ends at `j`."""
    ends, held, left = (column[:, None] for column in first)
    return np.where(room < held, np.inf, work.read((ends, np.full_like(ends, j)), room - left))


def _plan(found, work, i, j, room):
    plan, cuts = [], found.table.cuts
    while i < j:
        best = int(_best(found, work, i, j, np.array([room]))[1][0])
        kept, again = _first_segments(found, i, j)
        if best < len(kept.ends):
            k, left, how, inside = int(kept.ends[best]), kept.left[best], KEPT, ()
        else:
            best -= len(kept.ends)
            k, left, how = int(again.ends[best]), again.left[best], RECOMPUTED
            inside = tuple(merged(_plan(found, work, i, k, room)))
            inside = () if len(inside) == 1 else inside
        plan.append(Segment(int(cuts[i]), int(cuts[k]), how, inside))
        i, room = k, room - int(left)
    return plan
