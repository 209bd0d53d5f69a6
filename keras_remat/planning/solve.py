"""Choose where to cut a model: ints in, positions out, no framework.

A model is a list of calls in topological order. `inside[i]` is what call i holds while its segment
runs again, `sizes[i]` what it puts out and `last_use[i]` the position of the last call that reads it.
A cut keeps every output that is used after it; an output is charged to the segment that makes it. With
n equal calls, k segments take about k + n/k activations, least at k = sqrt(n) (Chen et al., Training
Deep Nets with Sublinear Memory Cost, 2016, https://arxiv.org/abs/1604.06174); calls that differ are cut
where little crosses and segments are balanced by what they hold.
"""

import math

_FEW = 12  # calls up to which all bounds on a segment are tried for the least peak
_CANDIDATES = 24  # bounds that are tried where there are more calls
_SLACK = 1.25  # how much larger than necessary a segment may be to find a narrower cut


def cut(inside, sizes, last_use, strategy):
    """Return the bounds `[0, ..., n]` of the segments that `strategy` asks for.

    Args:
      inside, sizes, last_use: lists of n ints, as above.
      strategy: "auto" (least kept + largest segment), "sqrt", "every" or a number of segments.

    Example:
        >>> cut([1] * 9, [1] * 9, [1, 2, 3, 4, 5, 6, 7, 8, 9], "sqrt")
        [0, 3, 6, 9]
        >>> cut([1] * 3, [1] * 3, [1, 2, 3], "every")
        [0, 1, 2, 3]
    """
    n = len(inside)
    if strategy == "every" or n < 2:
        return list(range(n + 1))
    if strategy == "auto":
        return _least_peak(inside, sizes, last_use)
    count = strategy if isinstance(strategy, int) else int(round(math.sqrt(n)))
    return _with_count(inside, sizes, last_use, max(1, min(count, n)))


def cut_chain(sizes, strategy):
    """Return the bounds for calls that each read the output of the one before.

    Example:
        >>> cut_chain([1] * 8, 2)
        [0, 4, 8]
    """
    return cut(sizes, sizes, list(range(1, len(sizes) + 1)), strategy)


def peak(inside, sizes, last_use, bounds):
    """Return what is kept at most: the outputs that cross cuts, and the largest segment's inside.

    Example:
        >>> peak([4] * 4, [1] * 4, [1, 2, 3, 4], [0, 2, 4])
        9
    """
    segments = list(zip(bounds, bounds[1:]))
    kept = sum(sizes[i] for start, stop in segments for i in range(start, stop) if last_use[i] >= stop)
    return kept - _final(sizes, last_use) + max(sum(inside[start:stop]) for start, stop in segments)


def _final(sizes, last_use):
    """What the model itself puts out, which every plan keeps."""
    return sum(size for size, last in zip(sizes, last_use) if last >= len(sizes))


def _least_peak(inside, sizes, last_use):
    tried = [_least_kept(inside, sizes, last_use, bound) for bound in _bounds_to_try(inside)]
    return min(tried, key=lambda bounds: (peak(inside, sizes, last_use, bounds), len(bounds)))


def _bounds_to_try(inside):
    """List what segments may hold: all sums that occur, or a geometric series where they are many."""
    smallest, largest = max(1, *inside), max(1, sum(inside))
    if len(inside) <= _FEW:
        ends = range(1, len(inside) + 1)
        return sorted({max(smallest, sum(inside[i:j])) for j in ends for i in range(j)})
    ratio = largest / smallest
    return [smallest * ratio ** (step / (_CANDIDATES - 1)) for step in range(_CANDIDATES)]


def _starts(inside, sizes, last_use, stop, bound):
    """Yield (start, kept, held) for every segment that ends at `stop` and holds at most `bound`."""
    held = kept = 0
    for start in range(stop - 1, -1, -1):
        held += inside[start]
        if held > bound and start < stop - 1:
            return
        kept += sizes[start] if last_use[start] >= stop else 0
        yield start, kept, held


def _least_kept(inside, sizes, last_use, bound):
    """Cut so that no segment holds more than `bound` and the least is kept."""
    n = len(inside)
    infinite = (float("inf"), 0)
    best, came = [(0, 0)] + [infinite] * n, [0] * (n + 1)
    for stop in range(1, n + 1):
        for start, kept, _ in _starts(inside, sizes, last_use, stop, bound):
            cost = (best[start][0] + kept, best[start][1] + 1)
            if cost < best[stop]:
                best[stop], came[stop] = cost, start
    bounds = [n]
    while bounds[-1]:
        bounds.append(came[bounds[-1]])
    return bounds[::-1]


def _with_count(inside, sizes, last_use, count):
    """Cut into `count` segments, balanced by what they hold, where the least is kept."""
    n = len(inside)
    bound = _SLACK * _smallest_bound(inside, count)
    infinite = (float("inf"), 0)
    best = [[infinite] * (n + 1) for _ in range(count + 1)]
    came = [[0] * (n + 1) for _ in range(count + 1)]
    best[0][0] = (0, 0)
    for stop in range(1, n + 1):
        for start, kept, held in _starts(inside, sizes, last_use, stop, bound):
            for k in range(1, count + 1):
                # Among cuts that keep the same, the squares favour segments that hold the same.
                cost = (best[k - 1][start][0] + kept, best[k - 1][start][1] + held * held)
                if cost < best[k][stop]:
                    best[k][stop], came[k][stop] = cost, start
    k = max(k for k in range(1, count + 1) if best[k][n] < infinite)
    bounds = [n]
    while bounds[-1]:
        bounds.append(came[k][bounds[-1]])
        k -= 1
    return bounds[::-1]


def _smallest_bound(inside, count):
    """Return the least bound that lets `count` segments in a row hold everything."""
    low, high = max(inside), sum(inside)
    while low < high:
        middle = (low + high) // 2
        segments, held = 1, 0
        for size in inside:
            if held + size > middle:
                segments, held = segments + 1, 0
            held += size
        if segments <= count:
            high = middle
        else:
            low = middle + 1
    return low
