"""So many segments, balanced by what they hold, where the least is kept.

With n equal calls, k recomputed segments take about k + n/k activations, least at k = sqrt(n) (Chen et al.,
Training Deep Nets with Sublinear Memory Cost, 2016, https://arxiv.org/abs/1604.06174). Where calls differ, a
segment may hold a quarter more than necessary if that finds a narrower cut.
"""

import numpy as np

_SLACK = 1.25


def bounds(table, count):
    """Return the numbers of the cuts that divide the table's calls into `count` segments.

    Args:
      table: `Intervals`.
      count: how many segments; as many as there are calls between cuts, at most.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> from keras_remat.planning.intervals import intervals
        >>> bounds(intervals(chain([9, 9, 1, 9, 9, 1, 9, 9])), 3)
        [0, 3, 6, 8]
    """
    n = len(table.cuts) - 1
    count = max(1, min(count, n))
    bound = _SLACK * _smallest_bound(table.held_kept, count)
    left = np.full((count + 1, n + 1), np.inf)
    squares, came = np.full_like(left, np.inf), np.zeros(left.shape, dtype=np.int64)
    left[0, 0] = squares[0, 0] = 0.0
    for stop in range(1, n + 1):
        first = min(int(np.argmax(table.held_kept[:stop, stop] <= bound)), stop - 1)
        # Of each number of segments (row), which start (column) leaves the least?
        all_left = left[:-1, first:stop] + table.leaving[first:stop, stop]
        left[1:, stop] = all_left.min(axis=1)
        # Among cuts that leave the same, the squares favour segments that hold the same.
        held = table.held_kept[first:stop, stop].astype(float)
        ties = np.where(all_left == left[1:, stop, None], squares[:-1, first:stop] + held**2, np.inf)
        came[1:, stop] = first + np.argmin(ties, axis=1)
        squares[1:, stop] = ties.min(axis=1)
    found = [n]
    for k in range(count, 0, -1):
        found.append(int(came[k, found[-1]]))
    return found[::-1]


def _smallest_bound(held, count):
    """The least that segments may hold for `count` of them to hold everything."""
    n = len(held)
    low, high = int(held[np.arange(n), np.arange(1, n + 1)].max()), int(held[0, n])
    while low < high:
        middle = (low + high) // 2
        position, segments = 0, 0
        while position < n:
            position += max(1, int(np.searchsorted(held[position, position + 1 :], middle, side="right")))
            segments += 1
        low, high = (low, middle) if segments <= count else (middle + 1, high)
    return low
