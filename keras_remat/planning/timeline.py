"""A training step moment by moment, as lists of ints: what a plan keeps of its simulation, and draws."""

from typing import List, NamedTuple

from keras_remat.planning.calls import RECOMPUTED
from keras_remat.planning.simulate import works_again

FORWARD, AGAIN, GRADIENT = range(3)
PARTS = 10**6  # of a forward pass, in which work is told
_KINDS = {"forward": FORWARD, "again": AGAIN, "gradient": GRADIENT}
_GRADIENTS = 2  # what a gradient costs, in forward runs: one product for the input and one for the weights


class Timeline(NamedTuple):
    """The moments of a training step, as columns.

    Attributes:
      kinds: what happens: `FORWARD`, `AGAIN` or `GRADIENT`.
      calls: positions of the calls to which it happens.
      held: bytes held meanwhile.
      ends: the work that is done then, in millionths of a forward pass.
    """

    kinds: List[int]
    calls: List[int]
    held: List[int]
    ends: List[int]


def timeline(calls, plan, step):
    """Return the `Timeline` of a `Simulation`.

    Args:
      calls: `Calls`.
      plan: the `Segment`s that were simulated.
      step: what `simulate(calls, plan)` returned.

    Example: two calls, of which the first runs again. A gradient counts as two runs.
        >>> from keras_remat.planning.calls import KEPT, Segment, chain
        >>> from keras_remat.planning.simulate import simulate
        >>> calls, plan = chain([6, 2], work=[3, 1]), [Segment(0, 1, RECOMPUTED), Segment(1, 2, KEPT)]
        >>> found = timeline(calls, plan, simulate(calls, plan))
        >>> found.kinds, found.calls, found.ends
        ([0, 0, 2, 1, 2], [0, 1, 1, 0, 0], [750000, 1000000, 1500000, 2250000, 3750000])
    """
    work = {FORWARD: [cost.work for cost in calls.costs]}
    total = sum(work[FORWARD])
    if not total:  # models of views only
        work[FORWARD], total = [1.0] * len(calls.costs), len(calls.costs) or 1
    work[GRADIENT] = [_GRADIENTS * forward for forward in work[FORWARD]]
    work[AGAIN] = _again(calls, plan, work[FORWARD])
    found, done = Timeline([], [], [], []), 0.0
    for moment in step.timeline:
        kind = _KINDS[moment.what]
        done += work[kind][moment.call]
        row = kind, moment.call, moment.held, int(round(PARTS * done / total))
        for column, value in zip(found, row):
            column.append(value)
    return found


def _again(calls, plan, forward):
    """What each call costs in a second run, else in the first."""
    again = list(forward)
    for segment in plan:
        if segment.how == RECOMPUTED:
            costs = calls.costs[segment.start : segment.stop]
            again[segment.start : segment.stop] = works_again(costs)
    return again
