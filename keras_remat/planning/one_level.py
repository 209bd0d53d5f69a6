"""Segments that run at most twice: the least peak there is, and the least extra work within a budget.

Both go from the last cut to the first. What segments before a cut leave is there whatever comes after it,
so the calls from a cut on are a problem of their own: how many bytes above that do they take? A segment
[i, j) takes what it holds itself, or what it leaves and what the calls from j on take, whichever is more.

- The least peak needs no search: `least[i]` is the least of that maximum over j and over keeping and
  recomputing. With one recomputation this is what Chen et al., Training Deep Nets with Sublinear Memory
  Cost (2016, https://arxiv.org/abs/1604.06174) look for; cuts may be crossed by several tensors, as in
  Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
  Backpropagation (2019, https://arxiv.org/abs/1905.11722).
- The least work takes memory in slots, as Beaumont et al., Optimal Checkpointing for Heterogeneous Chains
  (2019, https://arxiv.org/abs/1911.13214) do, but no budget fails for rounding that can be met (`slots`).
  Where slots are bytes, the result is the optimum.
"""

from typing import List

import numpy as np

from keras_remat.planning.calls import KEPT, RECOMPUTED, Segment
from keras_remat.planning.intervals import NEVER
from keras_remat.planning.slots import Slots

SLOTS = 128


def least_peaks(steps):
    """Return the least bytes that the calls from each position on take, above what is left before it.

    Args:
      steps: list of `Steps` from each position.

    Example: four calls that need their inputs.
        >>> from keras_remat.planning.calls import chain
        >>> from keras_remat.planning.steps import all_steps
        >>> least_peaks(all_steps(chain([1, 1, 1, 1]))).tolist()
        [4, 3, 3, 2, 0]
    """
    return _least(steps, 0)


def _least(steps, again):
    """The least bytes, where steps that are recomputed take `again` as well."""
    least = np.zeros(len(steps) + 1, dtype=np.int64)
    for i in reversed(range(len(steps))):
        taken = np.maximum(steps[i].held, steps[i].left + least[steps[i].ends])
        least[i] = (taken + again * steps[i].again).min()
    return least


def least_work(steps, budget, slots=SLOTS):
    """Return the `Segment`s that stay within `budget` bytes with the least extra work, or None.

    Args:
      steps: list of `Steps` from each position.
      budget: bytes.
      slots: how many amounts of memory are told apart at each position.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> from keras_remat.planning.steps import all_steps
        >>> steps = all_steps(chain([1, 1, 1, 1]))
        >>> [(s.start, s.stop, s.how) for s in least_work(steps, 4)]
        [(0, 1, 'kept'), (1, 3, 'recomputed'), (3, 4, 'kept')]
        >>> least_work(steps, 3) is None
        True
    """
    least = least_peaks(steps)
    if budget < least[0]:
        return None
    # More than keeping all of the calls takes is of no use.
    later = Slots(least, np.minimum(budget, _least(steps, NEVER)), slots)
    for i in reversed(range(1, len(steps))):
        later.work[i] = _best(steps[i], later, later.rooms(i))[0]
    return merged(_plan(steps, later, budget))


def _best(steps, later, room):
    """For each amount of `room`: the least work, and the number of the step to it."""
    possible = np.flatnonzero(steps.held <= room[-1])
    ends, held, left, extra, _ = (column[possible, None] for column in steps)
    work = np.where(room < held, np.inf, extra + later.read(ends, room - left))
    best = np.argmin(work, axis=0)
    return work[best, np.arange(len(room))], possible[best]


def _plan(steps, later, room):
    i, plan = 0, []
    while i < len(steps):
        best = _best(steps[i], later, np.array([room]))[1][0]
        end, _, left, _, again = (column[best].item() for column in steps[i])
        plan.append(Segment(i, end, RECOMPUTED if again else KEPT))
        i, room = end, room - left
    return plan


def merged(plan):
    """Join neighbours that are kept: what only they read need not be kept for leaving one of them.

    Example:
        >>> merged([Segment(0, 2, KEPT), Segment(2, 3, KEPT)])
        [Segment(start=0, stop=3, how='kept', inside=())]
    """
    joined: List[Segment] = []
    for segment in plan:
        segment = segment._replace(inside=tuple(merged(segment.inside)))
        if joined and joined[-1].how == segment.how == KEPT:
            joined[-1] = joined[-1]._replace(stop=segment.stop)
        else:
            joined.append(segment)
    return joined
