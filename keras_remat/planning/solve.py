"""Choose cuts from sizes alone: ints in, positions out, no framework.

With n equal layers, keeping the inputs of k segments and running one segment again at a time takes
about k + n/k activations, least at k = sqrt(n) (Chen et al., Training Deep Nets with Sublinear Memory
Cost, 2016, https://arxiv.org/abs/1604.06174). Where layers differ, segments are balanced by what they
hold inside.
"""

import math


def count_segments(sizes, strategy):
    """Return the number of segments that `strategy` asks for: "auto", "sqrt", "every" or an int."""
    n = len(sizes)
    if strategy == "every":
        return n
    if isinstance(strategy, int):
        return max(1, min(strategy, n))
    return max(1, int(round(math.sqrt(n))))


def balance(inside, crossing, count):
    """Cut positions 0..n into `count` segments with the least largest (inside + crossing) cost.

    Args:
      inside: list of ints, bytes that call i holds while its segment runs again.
      crossing: list of ints, bytes that must be kept if there is a cut after call i (the last is
        not used).
      count: int, number of segments at most.

    Returns:
      list of ints, the bounds `[0, ..., n]` of the segments; the sum of kept bytes breaks ties.

    Example:
        >>> balance([1, 1, 1, 1, 4, 4], [1] * 6, 3)
        [0, 4, 5, 6]
    """
    n = len(inside)
    if n == 0:
        return [0]
    total = [0]
    for size in inside:
        total.append(total[-1] + size)
    infinite = (float("inf"), float("inf"))
    best = [[infinite] * (n + 1) for _ in range(count + 1)]
    came = [[0] * (n + 1) for _ in range(count + 1)]
    best[0][0] = (0, 0)
    for k in range(1, count + 1):
        for stop in range(1, n + 1):
            for start in range(stop):
                largest, kept = best[k - 1][start]
                if largest == float("inf"):
                    continue
                cut = crossing[stop - 1] if stop < n else 0
                cost = (max(largest, total[stop] - total[start] + cut), kept + cut)
                if cost < best[k][stop]:
                    best[k][stop], came[k][stop] = cost, start
    return _bounds(best, came, n, count)


def _bounds(best, came, n, count):
    k = min(range(1, count + 1), key=lambda c: best[c][n])
    bounds = [n]
    while k > 0:
        bounds.append(came[k][bounds[-1]])
        k -= 1
    return bounds[::-1]


def cut(sizes, segments):
    """Return the bounds of the segments of a chain whose calls put out `sizes`.

    Example:
        >>> cut([1] * 9, "sqrt")
        [0, 3, 6, 9]
        >>> cut([1, 1, 1], "every")
        [0, 1, 2, 3]
    """
    if segments == "every":
        return list(range(len(sizes) + 1))
    return balance(sizes, sizes, count_segments(sizes, segments))
