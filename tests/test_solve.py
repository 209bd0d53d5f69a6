"""Cuts of small models against a judge that knows nothing of dynamic programming: it tries all cuts."""

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_remat import graph
from keras_remat.families.base import Call
from keras_remat.planning import solve
from keras_remat.planning.calls import RECOMPUTED, Segment

SLACK = 1.25  # how much more than necessary a segment of a given number may hold


@st.composite
def models(draw, most=7):
    """(inside, sizes, last_use) of up to `most` calls that each are read by some later call."""
    n = draw(st.integers(1, most))
    inside = draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    sizes = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    last_use = [draw(st.integers(i + 1, n)) for i in range(n - 1)] + [n]
    return inside, sizes, last_use


def every_cut(n):
    for chosen in itertools.product([False, True], repeat=n - 1):
        yield [0] + [i + 1 for i, cut in enumerate(chosen) if cut] + [n]


def held(inside, bounds):
    return [sum(inside[a:b]) for a, b in zip(bounds, bounds[1:])]


def simulated_peak(inside, sizes, last_use, bounds):
    """Walk forward and backward over a plan and note the most that is alive for the gradient.

    What the model puts out is left out: every plan keeps it.
    """
    n, alive, most = len(inside), set(), 0
    for i in range(n):
        stop = min(b for b in bounds if b > i)
        if stop <= last_use[i] < n:
            alive.add(i)
    for a, b in reversed(list(zip(bounds, bounds[1:]))):
        most = max(most, sum(sizes[i] for i in alive) + sum(inside[a:b]))
    return most


def is_a_cut(bounds, n):
    return bounds[0] == 0 and bounds[-1] == n and bounds == sorted(set(bounds))


@settings(deadline=None)
@given(models(), st.data())
def test_peak(model, data):
    bounds = data.draw(st.sampled_from(list(every_cut(len(model[0])))))
    assert solve.peak(*model, bounds) == simulated_peak(*model, bounds)


@settings(deadline=None, max_examples=500)
@given(models())
@example(([49, 5], [18, 4], [1, 2]))
def test_auto_is_the_least_peak(model):
    n = len(model[0])
    bounds = solve.cut(*model, "auto")
    assert is_a_cut(bounds, n)
    best = min(simulated_peak(*model, b) for b in every_cut(n))
    assert simulated_peak(*model, bounds) == best


@settings(deadline=None)
@given(models(), st.integers(1, 9))
def test_a_number_of_segments(model, count):
    """Exactly so many, none much larger than necessary, and the least is kept that this allows."""
    inside, sizes, last_use = model
    n = len(inside)
    bounds = solve.cut(*model, count)
    assert is_a_cut(bounds, n)
    assert len(bounds) - 1 == min(count, n)
    cuts = [b for b in every_cut(n) if len(b) == len(bounds)]
    limit = SLACK * min(max(held(inside, b)) for b in cuts)
    assert max(held(inside, bounds)) <= limit

    def kept(b):
        crossing = zip(last_use, sizes, range(n))
        return sum(size for last, size, i in crossing if last >= min(x for x in b if x > i))

    assert kept(bounds) == min(kept(b) for b in cuts if max(held(inside, b)) <= limit)


@given(models(40), st.sampled_from(["auto", "sqrt", "every", 3]))
@settings(deadline=None)
def test_any_length(model, strategy):
    bounds = solve.cut(*model, strategy)
    n = len(model[0])
    assert is_a_cut(bounds, n)
    assert strategy != "every" or bounds == list(range(n + 1))
    assert strategy != "sqrt" or len(bounds) - 1 == max(1, round(math.sqrt(n))) or n < 2


@given(st.integers(1, 60))
@settings(deadline=None)
def test_equal_calls_are_cut_evenly(n):
    """About the square root of so many, as in the paper."""
    bounds = solve.cut_chain([1] * n, "sqrt")
    lengths = held([1] * n, bounds)
    assert max(lengths) <= math.ceil(SLACK * math.ceil(n / len(lengths)))
    bounds = solve.cut_chain([1] * n, "auto")
    assert solve.peak([1] * n, [1] * n, list(range(1, n + 1)), bounds) <= 2 * math.sqrt(n) + 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 4))
def test_the_same_plan_every_time(sizes, count):
    assert solve.cut_chain(sizes, count) == solve.cut_chain(list(sizes), count)


def test_cuts_are_made_where_little_crosses():
    sizes = [9, 9, 1, 9, 9, 1, 9, 9]
    assert solve.cut_chain(sizes, 3) == [0, 3, 6, 8]


def test_a_skip_over_a_cut_is_kept():
    inside, sizes = [4, 4, 4, 4], [1, 5, 1, 1]
    assert solve.peak(inside, sizes, [1, 2, 3, 4], [0, 2, 4]) == 8 + 5
    assert solve.peak(inside, sizes, [3, 2, 3, 4], [0, 2, 4]) == 8 + 5 + 1


def call(name, inputs, outputs):
    return Call(name, tuple(inputs), tuple(outputs), 1, 1, None)


CALLS = [
    call("a", ["in"], ["a"]),
    call("b", ["a"], ["b", "side"]),
    call("c", ["b", "a", "b"], ["c"]),
    call("d", ["c", "in"], ["d"]),
]


def test_last_uses():
    assert graph.last_uses(CALLS, ["d"]) == [2, 2, 3, 4]
    assert graph.last_uses(CALLS, ["d", "side", "in"]) == [2, 4, 3, 4]


@pytest.mark.parametrize("outputs", [["d"], ["d", "side"], ["a", "d", "in"]])
@pytest.mark.parametrize("blocks", [[], [(0, 4)], [(0, 2), (2, 4)], [(1, 3)], [(2, 4)]])
def test_segments(blocks, outputs):
    """Each call runs once, and a segment is given just what it reads and asked for what is read."""
    segments = graph.segments(CALLS, outputs, [Segment(*block, RECOMPUTED) for block in blocks])
    assert [c for s in segments for c in s.calls] == CALLS
    known = {"in"}
    for i, segment in enumerate(segments):
        assert segment.is_block or len(segment.calls) == 1
        assert len(set(segment.inputs)) == len(segment.inputs)
        assert set(segment.inputs) <= known
        made = {key for c in segment.calls for key in c.outputs}
        assert {key for c in segment.calls for key in c.inputs} == set(segment.inputs) | {
            key for c in segment.calls for key in c.inputs if key in made
        }
        later = {key for s in segments[i + 1 :] for key in s.inputs} | set(outputs)
        assert set(segment.outputs) == made & later
        known |= set(segment.outputs)
    assert set(outputs) <= known
    starts = [sum(len(s.calls) for s in segments[:i]) for i in range(len(segments))]
    found = [(a, a + len(s.calls)) for a, s in zip(starts, segments) if s.is_block]
    assert found == [b for b in blocks if b[1] > b[0]]
