"""Where to cut a model that is too long to try all positions: where little crosses.

One position is taken in each of so many stretches that make equal bytes, the narrowest of them.
"""

import numpy as np

from keras_remat.planning.calls import last_readers


def spread(calls, most):
    """Return at most `most` + 1 positions to cut at, from 0 to the number of calls: all where so few.

    Example: of nine calls, into three stretches; little crosses before the fourth and the seventh.
        >>> from keras_remat.planning.calls import chain
        >>> spread(chain([9, 9, 1, 9, 9, 1, 9, 9, 9]), 3).tolist()
        [0, 3, 6, 9]
    """
    n = len(calls.costs)
    if n <= most:
        return np.arange(n + 1)
    crossing, kept = _crossing(calls), _kept(calls)
    middles = np.abs(kept * most / max(kept[-1], 1) % 1 - 0.5)
    bins = np.minimum(kept * most // max(kept[-1], 1), most - 1)
    inner = np.arange(1, n)
    order = inner[np.lexsort((middles[inner], crossing[inner], bins[inner]))]
    first = np.concatenate([[True], bins[order][1:] != bins[order][:-1]])
    return np.unique(np.concatenate([[0], order[first][: most - 1], [n]]))


def _kept(calls):
    """The bytes that are made before each position."""
    made = [cost.inner + sum(calls.sizes[key] for key in cost.outputs) for cost in calls.costs]
    return np.concatenate([[0], np.cumsum(np.array(made, dtype=np.int64))])


def _crossing(calls):
    """The bytes that cross each position."""
    n = len(calls.costs)
    last = last_readers(calls)
    change = np.zeros(n + 2, dtype=np.int64)
    for i, cost in enumerate(calls.costs):
        for key in cost.outputs:
            change[i + 1] += calls.sizes[key]
            change[last[key] + 1] -= calls.sizes[key]
    return np.cumsum(change)[: n + 1]
