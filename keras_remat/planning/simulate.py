"""What a training step holds under a plan: walked tensor by tensor, to judge what solvers promise.

The walk knows nothing of how plans are found. Three rules say how long a tensor has a place in memory:

- It stays until the last call that reads it has run, until the last gradient that needs it has, and, if
  it leaves the segment that makes it, until the gradient of the call that made it has run.
- Its gradient takes its place, and has one from the first gradient of a reader to that of its maker. What is
  there beside both while the gradient of a call runs is the call's `transient`.
- A run that keeps nothing holds a tensor until its last reader has run.

Where a tensor waits for one reader while its gradient has come from another, both have a place: the second
one is in the transients of the calls between (`waiting`).
"""

from collections import Counter
from typing import Any, Dict, List, NamedTuple

from keras_remat.planning.calls import KEPT, RECOMPUTED, Segment


class Moment(NamedTuple):
    """One call that runs ("forward", "again") or whose gradient does ("gradient"), and the bytes held."""

    what: str
    call: int
    held: int


class Simulation(NamedTuple):
    """A training step: its moments, the most that it holds in bytes, and the work of its second runs."""

    timeline: List[Moment]
    peak: int
    extra: float


def simulate(calls, plan):
    """Walk through a training step and return its `Simulation`.

    Args:
      calls: `Calls`.
      plan: `Segment`s that follow each other from the first call to the last.

    Raises:
      ValueError: the segments leave out calls, overlap or are of an unknown kind.

    Example: four calls that need their inputs, of which the first three run again; before that, the step
    holds two tensors less than it would.
        >>> from keras_remat.planning.calls import chain
        >>> calls = chain([1, 1, 1, 1])
        >>> step = simulate(calls, [Segment(0, 3, RECOMPUTED), Segment(3, 4, KEPT)])
        >>> [moment.held for moment in step.timeline if moment.what != "again"]
        [1, 2, 2, 2, 3, 4, 3, 1]
        >>> step.peak, step.extra
        (4, 3.0)
    """
    _check(plan, 0, len(calls.costs))
    step = _Step(calls)
    for segment in plan:
        step.forward(segment, "forward")
    for segment in reversed(plan):
        step.backward(segment)
    extra = sum(work_again(calls, segment) for segment in plan)
    return Simulation(step.timeline, max([0] + [moment.held for moment in step.timeline]), extra)


def work_again(calls, segment):
    """Return the work of a segment's second run, and of those of segments inside it.

    Left out are the tails of calls whose outputs the second run does not read.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> inside = Segment(0, 2, RECOMPUTED), Segment(2, 3, KEPT)
        >>> work_again(chain([1, 1, 1]), Segment(0, 3, RECOMPUTED, inside))
        5.0
    """
    if segment.how == KEPT:
        return 0.0
    own = sum(works_again(calls.costs[segment.start : segment.stop]))
    return own + sum(work_again(calls, inner) for inner in segment.inside)


def works_again(costs):
    """List what each call of a segment costs in its second run: no tails of calls that none of them reads.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> works_again([cost._replace(tail=1.0) for cost in chain([1, 1, 1], work=[3, 4, 5]).costs])
        [3.0, 4.0, 4.0]
    """
    read = {key for cost in costs for key in cost.inputs}
    return [cost.work if read.intersection(cost.outputs) else cost.work - cost.tail for cost in costs]


def plain(calls):
    """Return the `Simulation` of a step in which nothing runs again.

    Example:
        >>> from keras_remat.planning.calls import chain
        >>> plain(chain([1] * 9)).peak
        10
    """
    return simulate(calls, [Segment(0, len(calls.costs), KEPT)] if calls.costs else [])


def _check(plan, position, stop):
    for segment in plan:
        if segment.how not in (KEPT, RECOMPUTED) or (segment.inside and segment.how == KEPT):
            raise ValueError(
                "A segment is kept, or recomputed and then may have others inside. "
                f"Received: {segment}. Use the names KEPT and RECOMPUTED."
            )
        if segment.start != position or segment.stop <= segment.start:
            raise ValueError(
                f"Segments must follow each other. Received: {segment} at position {position}. "
                "Let each start where the one before stops."
            )
        if segment.inside:
            _check(segment.inside, segment.start, segment.stop)
        position = segment.stop
    if position != stop:
        raise ValueError(
            f"Segments must hold all calls. Received: segments up to {position} of {stop}. Add the others."
        )


class _Places:
    """The tensors that have a place, each for as long as there is a reason, and their bytes."""

    def __init__(self, sizes):
        self.sizes, self.bytes = sizes, 0
        self.reasons: Dict[Any, int] = Counter()

    def hold(self, key):
        self.reasons[key] += 1
        if self.reasons[key] == 1:
            self.bytes += self.sizes[key]

    def let_go(self, key):
        self.reasons[key] -= 1
        if self.reasons[key] == 0:
            self.bytes -= self.sizes[key]

    def end(self, key):
        if self.reasons.pop(key, 0) > 0:
            self.bytes -= self.sizes[key]


class _Step:
    """A training step on its way."""

    def __init__(self, calls):
        self.costs = calls.costs
        self.maker = {key: i for i, cost in enumerate(calls.costs) for key in cost.outputs}
        self.last = dict(self.maker)  # the last call that reads a tensor
        for i, cost in enumerate(calls.costs):
            self.last.update({key: i for key in cost.inputs if key in self.maker})
        self.last.update({key: len(calls.costs) for key in calls.results if key in self.maker})
        self.places, self.inner = _Places(calls.sizes), 0
        self.timeline: List[Moment] = []

    def forward(self, segment, what):
        """Run a segment, with what it makes kept or not."""
        for i in range(segment.start, segment.stop):
            self._run(i, segment, what)

    def _run(self, i, segment, what):
        cost, keeps = self.costs[i], segment.how == KEPT
        for key in cost.outputs:
            self.places.hold(key)
        self.inner += cost.inner
        if keeps:
            for key in self._needed(cost, segment):
                self.places.hold(key)
        self._note(what, i)
        if not keeps:
            self.inner -= cost.inner
        for key in set(cost.inputs + cost.outputs):
            # What leaves the segment is held on until the gradient of its maker has run.
            if self.last.get(key) == i and self.maker[key] >= segment.start:
                self.places.let_go(key)

    def _needed(self, cost, segment):
        return [key for key in cost.needs if self.maker.get(key, -1) >= segment.start]

    def backward(self, segment):
        """Run the gradients of a segment, after the calls themselves where they are not kept."""
        if segment.how == KEPT:
            for i in reversed(range(segment.start, segment.stop)):
                self._gradient(i, segment)
            return
        inside = segment.inside or (segment._replace(how=KEPT),)
        for inner in inside:
            self.forward(inner, "again")
        for inner in reversed(inside):
            self.backward(inner)

    def _gradient(self, i, segment):
        cost = self.costs[i]
        for key in cost.inputs:
            if self.maker.get(key, -1) >= segment.start:
                self.places.hold(key)
        for key in cost.outputs:  # zeros, where nothing has read them
            self.places.hold(key)
        self._note("gradient", i, cost.transient)
        self.inner -= cost.inner
        for key in self._needed(cost, segment):
            self.places.let_go(key)
        for key in cost.outputs:
            self.places.end(key)

    def _note(self, what, i, transient=0):
        self.timeline.append(Moment(what, i, self.places.bytes + self.inner + transient))
