"""Which calls of a model become blocks, by strategy or within a budget.

The blocks of a model are `Segment`s of its calls; those of models inside it are blocks of theirs.
"""

from keras_remat.errors import BudgetError
from keras_remat.planning import models
from keras_remat.planning.calls import KEPT, Segment, between, last_readers, moved
from keras_remat.planning.choose import choose, fit, over
from keras_remat.planning.one_level import merged
from keras_remat.planning.simulate import plain, simulate
from keras_remat.planning.waiting import with_waiting

_HALVINGS = 12  # of the share of memory that each run of calls gets, where a model has several


def by_strategy(part, strategy):
    """Return the `models.Cut` that a strategy asks for; see `choose`."""

    def solve(calls):
        return choose(calls, models.share(strategy, len(calls.costs), part))

    inner = {i: by_strategy(p, strategy) for i, p in part.inner.items()}
    return models.Cut(part, _blocks(part, solve), inner)


def _blocks(part, solve):
    found, calls = [], with_waiting(part.costs)
    last = last_readers(calls)
    for start, stop in models.runs(part):
        solved = solve(between(calls, start, stop, last))
        found += [moved(s, start) for s in solved if s.how != KEPT]
    return found


def by_budget(part, budget):
    """Return the `models.Cut` with which a step holds at most `budget` bytes, for the least extra work.

    Where some calls are in no block, the runs of calls between them each get the same share of what they
    would take; the largest share is found by halving.

    Raises:
      BudgetError: nothing fits; it has the smallest budget that does.
    """
    calls = models.flat(part)
    if not part.separate:
        return models.Cut(part, [s for s in fit(calls, budget) if s.how != KEPT], {})
    if plain(calls).peak <= budget:
        return _with_share(part, 1.0)
    low, high = 0.0, 1.0
    best = _with_share(part, 0.0)
    smallest = _peak(calls, best)
    if smallest > budget:
        raise over(budget, smallest)
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        tried = _with_share(part, share)
        if _peak(calls, tried) <= budget:
            low, best = share, tried
        else:
            high = share
    return best


def _with_share(part, share):
    def solve(calls):
        try:
            return fit(calls, int(share * plain(calls).peak))
        except BudgetError as error:
            return fit(calls, error.smallest)

    return models.Cut(part, _blocks(part, solve), {i: _with_share(p, share) for i, p in part.inner.items()})


def segments(cut):
    """Return the segments of a cut, and of the cuts inside it, over the calls of `models.flat`."""
    found, position, starts = [], 0, {s.start: s for s in cut.blocks}
    i, n = 0, len(cut.part.calls)
    while i < n:
        if i in cut.inner:
            inner = segments(cut.inner[i])
            found += [moved(s, position) for s in inner]
            position += inner[-1].stop
            i += 1
            continue
        block = starts.get(i) or Segment(i, i + 1, KEPT)
        found.append(moved(block, position - i))
        position += block.stop - i
        i = block.stop
    return merged(found)


def peak(cut):
    """Return the most bytes that a step holds with the blocks of a cut."""
    return _peak(models.flat(cut.part), cut)


def _peak(calls, cut):
    return simulate(calls, segments(cut)).peak
