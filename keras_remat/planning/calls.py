"""What the planner knows of a model, and what it says of it: calls with their costs, and segments.

A model is a list of calls in topological order that read and make tensors, known by their keys. Nothing
here knows a framework: keys are any hashable values, sizes are bytes, work is in FLOP equivalents. What no
call makes is an input of the model; it is there before a step and after it, so it costs nothing.
"""

from typing import Any, Dict, FrozenSet, NamedTuple, Tuple

KEPT = "kept"
RECOMPUTED = "recomputed"


class Cost(NamedTuple):
    """One call: what it reads and makes, and what it costs.

    Args:
      name: what a person knows it by.
      inputs, outputs: keys of the tensors that it reads and makes. Outputs are made by one call only.
      inner: bytes made inside the call that its gradient reads, beside inputs and outputs.
      needs: those of its inputs and outputs that its gradient reads.
      work: what running it forward costs, in FLOP equivalents.
      tail: the part of `work` that is left out of a second run in which nothing reads its outputs: that
        of the last linear op, say, whose result no gradient needs.
      transient: bytes that are there only while its gradient runs, beside places for the gradients of its
        inputs and outputs: what it needs of these, say, and gradients of weights. Tensors of other calls
        that wait meanwhile are added by `waiting`.

    Example:
        >>> Cost("relu", ("x",), ("y",), needs=frozenset("y"), work=10.0).inner
        0
    """

    name: str
    inputs: Tuple[Any, ...]
    outputs: Tuple[Any, ...]
    inner: int = 0
    needs: FrozenSet[Any] = frozenset()
    work: float = 0.0
    tail: float = 0.0
    transient: int = 0


class Calls(NamedTuple):
    """A model: the costs of its calls in topological order.

    Args:
      costs: tuple of `Cost`.
      sizes: bytes of each tensor that a call makes, by key.
      results: keys of the tensors that the model puts out.
    """

    costs: Tuple[Cost, ...]
    sizes: Dict[Any, int]
    results: Tuple[Any, ...]


class Segment(NamedTuple):
    """The calls from `start` to before `stop`, and what becomes of what they make.

    Args:
      start, stop: positions of calls.
      how: `KEPT`, as plain execution does, or `RECOMPUTED`: only what is read later is kept, and the calls
        run again when their gradient is wanted.
      inside: segments that the second run of a recomputed segment is made of, some of which may be
        recomputed once more. Empty means that the second run keeps all that it makes.

    Example:
        >>> Segment(0, 4, RECOMPUTED, (Segment(0, 3, RECOMPUTED), Segment(3, 4, KEPT))).inside[1].how
        'kept'
    """

    start: int
    stop: int
    how: str
    inside: Tuple[Any, ...] = ()


def moved(segment, by):
    """Return a segment, and those inside it, so many positions later.

    Example:
        >>> moved(Segment(0, 2, KEPT), 3)
        Segment(start=3, stop=5, how='kept', inside=())
    """
    inside = tuple(moved(inner, by) for inner in segment.inside)
    return Segment(segment.start + by, segment.stop + by, segment.how, inside)


def last_readers(calls):
    """Return the position of the last call that reads or makes each tensor, of results that after all calls.

    Example:
        >>> last_readers(chain([4, 2]))
        {0: 1, -1: 0, 1: 2}
    """
    last = {}
    for i, cost in enumerate(calls.costs):
        last.update(dict.fromkeys(cost.outputs + cost.inputs, i))
    last.update(dict.fromkeys(calls.results, len(calls.costs)))
    return last


def between(calls, start, stop, last):
    """Return the `Calls` from `start` to before `stop`; what is read after them is what they put out.

    Args:
      last: what `last_readers(calls)` returned.
    """
    costs = calls.costs[start:stop]
    results = tuple(key for cost in costs for key in cost.outputs if last[key] >= stop)
    return Calls(costs, calls.sizes, results)


def chain(sizes, work=None):
    """Return calls that each read the tensor before them, which their gradient needs.

    Example:
        >>> chain([4, 2]).costs[1]
        Cost(name='1', inputs=(0,), outputs=(1,), inner=0, needs=frozenset({0}), work=2.0,
             tail=0.0, transient=4)
    """
    work = sizes if work is None else work
    costs = [
        Cost(str(i), (i - 1,), (i,), 0, frozenset([i - 1]), float(w), 0.0, sizes[i - 1] if i else 0)
        for i, w in enumerate(work)
    ]
    return Calls(tuple(costs), dict(enumerate(sizes)), (len(sizes) - 1,))
