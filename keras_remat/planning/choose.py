"""From a model's calls to a plan: which solver is asked, and on which positions.

Up to a few hundred calls, all segments are tried. Longer models are solved on the segments that matter (see
`steps`), with fewer amounts of memory told apart; that takes seconds for 10,000 calls.
"""

import heapq
import math

from keras_remat.errors import BudgetError
from keras_remat.planning import counted, nested
from keras_remat.planning.calls import KEPT, RECOMPUTED, Segment, chain
from keras_remat.planning.candidates import spread
from keras_remat.planning.intervals import intervals
from keras_remat.planning.one_level import least_peaks, least_work
from keras_remat.planning.simulate import plain, simulate
from keras_remat.planning.steps import all_steps, and_long_steps, only, short_steps

_ALL = 256  # calls up to which all segments are tried


def choose(calls, strategy="auto"):
    """Return the `Segment`s that a strategy asks for.

    Args:
      calls: `Calls`.
      strategy: "auto" (of the plans with the least peak, one that repeats the least work), "sqrt", "every" or
        a number of segments.

    Example: six calls that need their inputs. The last ones need not run again.
        >>> from keras_remat.planning.calls import chain
        >>> [(s.start, s.stop, s.how) for s in choose(chain([1] * 6))]
        [(0, 3, 'recomputed'), (3, 5, 'recomputed'), (5, 6, 'kept')]
        >>> [(s.start, s.stop, s.how) for s in choose(chain([1] * 6), 2)]
        [(0, 3, 'recomputed'), (3, 6, 'recomputed')]
    """
    n = len(calls.costs)
    if n == 0:
        return []
    if strategy == "every":
        return [Segment(i, i + 1, RECOMPUTED) for i in range(n)]
    if strategy == "auto":
        steps = _steps(calls)
        return least_work(steps, int(least_peaks(steps)[0]), _slots(n))
    count = int(round(math.sqrt(n))) if strategy == "sqrt" else strategy
    bounds = _balanced(calls, max(1, min(count, n)))
    return [Segment(start, stop, RECOMPUTED) for start, stop in zip(bounds, bounds[1:])]


def cut_chain(sizes, strategy):
    """Return the bounds of segments that all run again, of calls that each read the output of the one before.

    Args:
      sizes: list of ints, what each call puts out.
      strategy: "auto" (the least peak), "sqrt" or a number of segments.

    Example:
        >>> cut_chain([1] * 8, 2), cut_chain([9, 9, 1, 9, 9, 1, 9, 9], "auto")
        ([0, 4, 8], [0, 3, 6, 8])
    """
    calls = chain(sizes)
    if strategy == "auto" and sizes:
        steps = [only(found, found.again) for found in _steps(calls)]
        found = least_work(steps, int(least_peaks(steps)[0]), _slots(len(sizes)))
    else:
        found = choose(calls, strategy)
    return [0, *(segment.stop for segment in found)]


def fit(calls, budget, *, deep=True):
    """Return the `Segment`s with which a training step holds at most `budget` bytes, for the least work.

    Args:
      calls: `Calls`.
      budget: bytes for what the calls make. Weights, their optimizer and inputs of the model are not in it.
      deep: whether segments may have others inside, so that calls run more than twice. This meets smaller
        budgets, and where one recomputation just fits, it may repeat less work.

    Raises:
      BudgetError: nothing fits; it has the smallest budget that does.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> [(s.start, s.stop, s.how) for s in fit(chain([1] * 9), 7)]
        [(0, 2, 'kept'), (2, 6, 'recomputed'), (6, 9, 'kept')]
        >>> fit(chain([1] * 9), 2)
        Traceback (most recent call last):
        keras_remat.errors.BudgetError: A training step must fit the memory budget. Received: 2 bytes.
        No plan takes less than 3. Give it that much, or make the batch smaller.
    """
    n = len(calls.costs)
    if plain(calls).peak <= budget:
        return [Segment(0, n, KEPT)] if n else []
    steps = _steps(calls)
    smallest = int(least_peaks(steps)[0])
    plans = [least_work(steps, budget, _slots(n))]
    if deep:
        problems = nested.problems(calls, spread(calls, nested.BLOCKS))
        smallest = min(smallest, int(problems.least[0, -1]))
        plans.append(nested.solve(problems, budget))
    plans = [plan for plan in plans if plan is not None]
    if not plans:
        raise over(budget, smallest)
    return min(plans, key=lambda plan: simulate(calls, plan).extra)


def over(budget, smallest):
    """Return the error for a budget that no plan meets."""
    return BudgetError(
        f"A training step must fit the memory budget. Received: {budget} bytes. No plan takes less than "
        f"{smallest}. Give it that much, or make the batch smaller.",
        smallest,
    )


def _steps(calls):
    n = len(calls.costs)
    if n <= _ALL:
        return all_steps(calls)
    width = max(32, int(1.5 * math.sqrt(n)))  # longer than equal segments are at the least peak
    return and_long_steps(short_steps(calls, width), calls, width, spread(calls, 192))


def _slots(n):
    """How many amounts of memory are told apart: fewer where there are many positions to do so."""
    return max(32, min(1024, 32768 // n, 128 if n > 64 else 1024))


def _balanced(calls, count):
    """The bounds of `count` segments that hold about the same."""
    n = len(calls.costs)
    if n <= _ALL or count <= _ALL // 2:
        table = intervals(calls, spread(calls, _ALL))
        return [int(table.cuts[i]) for i in counted.bounds(table, min(count, len(table.cuts) - 1))]
    bounds = [int(position) for position in spread(calls, count)]
    longest = [(start - stop, start, stop) for start, stop in zip(bounds, bounds[1:])]
    heapq.heapify(longest)
    while len(longest) < count:  # a call that makes more than its share leaves others without one
        _, start, stop = heapq.heappop(longest)
        middle = (start + stop) // 2
        heapq.heappush(longest, (start - middle, start, middle))
        heapq.heappush(longest, (middle - stop, middle, stop))
    return sorted(start for _, start, _ in longest) + [n]
