"""The segments that a solver may choose from: all of them, or in long models those that matter.

From each position a plan takes a step: a segment to some end, kept or recomputed. With n calls there are n²
of them. In models of more than a few hundred calls, a step is either short and starts anywhere, or long and
goes between positions that `candidates` has picked. Long steps are few, and a little more or less at their
ends matters little. To cut at such positions only would lose much where costs are uneven, because the best
plans then keep and recompute single calls: 13% to 20% more work instead of 6%, in one case of 1,000 calls.
"""

from typing import List, NamedTuple

import numpy as np

from keras_remat.planning.calls import between, last_readers
from keras_remat.planning.intervals import intervals


class Steps(NamedTuple):
    """The steps from one position, as columns.

    Args:
      ends: positions where the segments stop.
      held: the most bytes that they hold themselves, above what is left before.
      left: bytes that they leave.
      extra: what running them again costs, in FLOP equivalents.
      again: whether they are recomputed.
    """

    ends: np.ndarray
    held: np.ndarray
    left: np.ndarray
    extra: np.ndarray
    again: np.ndarray


def all_steps(calls):
    """Return the `Steps` from each position.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> first = all_steps(chain([5, 2]))[0]
        >>> first.ends.tolist(), first.held.tolist(), first.left.tolist()
        ([2, 1, 2, 1], [12, 5, 12, 5], [7, 5, 2, 5])
    """
    return _steps(intervals(calls), 0)


def short_steps(calls, width):
    """Return the `Steps` from each position that are at most `width` calls long.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> [sorted(set(steps.ends.tolist())) for steps in short_steps(chain([1] * 4), 2)]
        [[1, 2], [2, 3], [3, 4], [4]]
    """
    n, found, last = len(calls.costs), [], last_readers(calls)
    for start in range(0, n, width):
        stop = min(start + 2 * width, n)
        within = _steps(intervals(between(calls, start, stop, last)), start)
        found += [only(steps, steps.ends <= start + i + width) for i, steps in enumerate(within[:width])]
    return found


def and_long_steps(short, calls, width, cuts):
    """Return `short` steps and those between `cuts` that are longer than `width` calls.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> calls = chain([1] * 8)
        >>> steps = and_long_steps(short_steps(calls, 2), calls, 2, [0, 4, 8])
        >>> sorted(set(steps[0].ends.tolist())), sorted(set(steps[1].ends.tolist()))
        ([1, 2, 4, 8], [2, 3])
    """
    found = list(short)
    for position, steps in zip(cuts, _steps(intervals(calls, cuts), 0)):
        longer = only(steps, steps.ends > position + width)
        found[position] = Steps(*(np.concatenate(columns) for columns in zip(longer, found[position])))
    return found


def _steps(table, offset) -> List[Steps]:
    """The steps of a table; those that are kept first, and the longest of each kind first."""
    found, n = [], len(table.cuts) - 1
    for i in range(n):
        ends = np.arange(n, i, -1)
        none = np.zeros(len(ends))
        kept = (ends, table.held_kept[i, ends], table.both[i, ends], none, none)
        again = (ends, table.held_again[i, ends], table.leaving[i, ends], table.extra[i, ends], none + 1)
        ends, held, left, extra, is_again = (np.concatenate(columns) for columns in zip(kept, again))
        found.append(Steps(table.cuts[ends] + offset, held, left, extra, is_again > 0))
    return found


def only(steps, wanted):
    """Return the rows of `Steps` that are `wanted`, an array of bools."""
    return Steps(*(column[wanted] for column in steps))
