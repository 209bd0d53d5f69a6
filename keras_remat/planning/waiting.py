"""What waits while the gradients of calls run that a tensor skips: the tensor, beside its gradient.

A tensor with several readers has a gradient from the moment that its last reader's has run. Until that of
its first one has, both are there: a skip connection on its way back. A walk through the step gives the two
one place, because what a segment leaves must not depend on where later ones are cut; so the second place
counts as a transient of the calls between, which is the same under every plan.
"""

from itertools import accumulate
from typing import Any, Dict, List

from keras_remat.planning.calls import last_readers


def with_waiting(calls):
    """Return `Calls` whose transients have tensors that wait beside their gradients.

    Example: the last of four calls reads what the first has made, which the second needs.
        >>> from keras_remat.planning.calls import chain
        >>> calls = chain([5, 1, 1, 1])
        >>> last = calls.costs[3]._replace(inputs=(2, 0))
        >>> calls = calls._replace(costs=(*calls.costs[:3], last))
        >>> [[cost.transient for cost in found.costs] for found in (calls, with_waiting(calls))]
        [[0, 5, 1, 1], [0, 5, 6, 1]]
    """
    steps = [0] * (len(calls.costs) + 1)
    last = last_readers(calls)
    for key, needers in _needers(calls).items():
        start, size = min(needers), calls.sizes[key]
        if last[key] <= start + 1:
            continue
        steps[start] += size
        steps[last[key]] -= size
        for i in needers:  # what a call needs is in its transient already
            if i < last[key]:
                steps[i] -= size
                steps[i + 1] += size
    costs = (c._replace(transient=c.transient + more) for c, more in zip(calls.costs, accumulate(steps)))
    return calls._replace(costs=tuple(costs))


def _needers(calls):
    """Return {key: positions of calls that need it} of tensors that calls make."""
    found: Dict[Any, List[int]] = {}
    for i, cost in enumerate(calls.costs):
        for key in cost.needs:
            if key in calls.sizes:
                found.setdefault(key, []).append(i)
    return found
