"""Plans of small models against all plans there are, judged by a simulator that knows no solver."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_remat import BudgetError
from keras_remat.planning import nested
from keras_remat.planning.calls import KEPT, RECOMPUTED, Calls, Cost, Segment, chain
from keras_remat.planning.candidates import spread
from keras_remat.planning.choose import choose, fit
from keras_remat.planning.intervals import intervals
from keras_remat.planning.one_level import least_peaks, least_work
from keras_remat.planning.simulate import plain, simulate
from keras_remat.planning.steps import all_steps, and_long_steps, short_steps
from keras_remat.planning.waiting import with_waiting

MB = 10**6


@st.composite
def models(draw, most=6, largest=9):
    """Calls that read any tensors before them and make one or two, some of which are never read."""
    keys, costs, sizes = ["in"], [], {}
    for i in range(draw(st.integers(1, most))):
        inputs = tuple(draw(st.lists(st.sampled_from(keys[-5:]), min_size=1, max_size=3)))
        outputs = tuple("%d%s" % (i, side) for side in "ab"[: draw(st.integers(1, 2))])
        sizes.update({key: draw(st.integers(0, largest)) for key in outputs})
        needs = draw(st.sets(st.sampled_from(inputs + outputs)))
        inner, transient = draw(st.sampled_from([0, 0, 1, largest])), draw(st.sampled_from([0, 0, 2]))
        work = draw(st.integers(1, 9))
        costs.append(
            Cost(str(i), inputs, outputs, inner, frozenset(needs), work, draw(st.integers(0, 1)), transient)
        )
        keys += outputs
    results = {keys[-1], draw(st.sampled_from(keys))}
    return Calls(tuple(costs), sizes, tuple(sorted(results)))


def every_plan(start, stop, depth=0):
    """All plans of the calls from `start` to `stop`, with segments up to `depth` deep inside others."""
    if start == stop:
        yield ()
    for middle in range(start + 1, stop + 1):
        firsts = [Segment(start, middle, KEPT), Segment(start, middle, RECOMPUTED)]
        if depth:
            inside = (plan for plan in every_plan(start, middle, depth - 1) if len(plan) > 1)
            firsts += [Segment(start, middle, RECOMPUTED, plan) for plan in inside]
        for first, rest in itertools.product(firsts, list(every_plan(middle, stop, depth))):
            yield (first,) + rest


def assert_optimal(calls, depth, least, solve):
    """`least` is the smallest peak of all plans, and from it on `solve(budget)` repeats the least work."""
    n = len(calls.costs)
    steps = [simulate(calls, plan) for plan in every_plan(0, n, depth)]
    assert least == min(step.peak for step in steps)
    assert solve(least - 1) is None
    for budget in range(least, max(step.peak for step in steps) + 2):
        found = simulate(calls, solve(budget))
        assert found.peak <= budget
        assert found.extra == min(step.extra for step in steps if step.peak <= budget)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(models(5))
def test_one_level_is_optimal(calls):
    steps = all_steps(calls)
    assert_optimal(calls, 0, least_peaks(steps)[0], lambda budget: least_work(steps, budget))


@settings(deadline=None, derandomize=True, max_examples=15)
@given(models(4, largest=4))
def test_nested_is_optimal(calls):
    n = len(calls.costs)
    problems = nested.problems(calls, range(n + 1))
    assert_optimal(calls, 2, problems.least[0, n], lambda budget: nested.solve(problems, budget))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_chains_are_optimal(n):
    for sizes in itertools.product([1, 3], repeat=n):
        steps = all_steps(chain(sizes))
        assert_optimal(chain(sizes), 0, least_peaks(steps)[0], lambda budget, s=steps: least_work(s, budget))


@settings(deadline=None, derandomize=True, max_examples=15)
@given(models(7, largest=10**6), st.floats(0, 1))
def test_bytes_need_not_be_few(calls, share):
    """Where amounts of memory outnumber what is told apart, plans are as good."""
    peaks = [
        (step.peak, step.extra) for step in (simulate(calls, p) for p in every_plan(0, len(calls.costs)))
    ]
    least, plain_peak = min(peak for peak, _ in peaks), plain(calls).peak
    budget = least + int(share * (plain_peak - least))
    step = simulate(calls, least_work(all_steps(calls), budget))
    assert step.peak <= budget
    assert step.extra <= min(extra for peak, extra in peaks if peak <= budget) + 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(models(6), st.data())
def test_tables_say_what_the_simulator_finds(calls, data):
    table, n = intervals(calls), len(calls.costs)
    plan = data.draw(st.sampled_from(list(every_plan(0, n))))
    left = most = extra = 0
    for start, stop, how, _ in plan:
        is_kept = how == KEPT
        most = max(most, left + (table.held_kept if is_kept else table.held_again)[start, stop])
        left += (table.both if is_kept else table.leaving)[start, stop]
        extra += 0 if is_kept else table.extra[start, stop]
    step = simulate(calls, plan)
    assert (step.peak, step.extra) == (most, extra)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(models(9), st.integers(1, 5))
def test_cuts_that_leave_out_positions(calls, count):
    """What tables of fewer cuts promise is kept, and exactly so where nothing runs again."""
    cuts = spread(calls, count)
    table = intervals(calls, cuts)
    full = intervals(calls)
    at = np.ix_(cuts[:-1], cuts)
    for name in ("inside", "leaving", "both", "held_kept", "extra"):
        upper = np.triu(np.ones_like(getattr(table, name)), 1) > 0
        assert (getattr(table, name) == getattr(full, name)[at])[upper].all(), name
    assert (table.held_again >= full.held_again[at])[upper].all()


@settings(deadline=None, derandomize=True, max_examples=40)
@given(models(8), st.integers(1, 4))
def test_short_steps_are_those_of_the_whole(calls, width):
    for i, (short, full) in enumerate(zip(short_steps(calls, width), all_steps(calls))):
        columns = [column[full.ends <= i + width] for column in full]
        assert all((a == b).all() for a, b in zip(short, columns))


@settings(deadline=None, derandomize=True, max_examples=20)
@given(models(9))
def test_budgets(calls):
    """More memory never means more work; the smallest budget fits and one byte less does not."""
    with pytest.raises(BudgetError) as error:
        fit(calls, -1)
    smallest, last = error.value.smallest, float("inf")
    assert str(smallest) in str(error.value)
    with pytest.raises(BudgetError):
        fit(calls, smallest - 1)
    for budget in range(smallest, plain(calls).peak + 1, max(1, plain(calls).peak // 6)):
        step = simulate(calls, fit(calls, budget))
        assert step.peak <= budget
        assert step.extra <= last
        last = step.extra
    assert fit(calls, plain(calls).peak) == [Segment(0, len(calls.costs), KEPT)]


def test_one_recomputation_is_enough_where_asked():
    calls = chain([1] * 20)
    with pytest.raises(BudgetError) as shallow:
        fit(calls, 1, deep=False)
    with pytest.raises(BudgetError) as deep:
        fit(calls, 1)
    assert (shallow.value.smallest, deep.value.smallest) == (7, 3)
    assert not any(segment.inside for segment in fit(calls, 7, deep=False))
    assert any(segment.inside for segment in fit(calls, 5))


@settings(deadline=None, derandomize=True, max_examples=30)
@given(models(9), st.sampled_from(["auto", "sqrt", "every", 1, 3, 50]))
def test_strategies(calls, strategy):
    plan, n = choose(calls, strategy), len(calls.costs)
    simulate(calls, plan)
    counts = {"sqrt": max(1, round(n**0.5)), "every": n}
    if strategy != "auto":
        assert len(plan) == counts.get(strategy, strategy if strategy in (1, 3) else n) or n < 3
        assert all(segment.how == RECOMPUTED for segment in plan)
    assert choose(calls, strategy) == plan


def test_no_calls():
    nothing = Calls((), {}, ())
    assert choose(nothing) == choose(nothing, "sqrt") == fit(nothing, 0) == []
    assert simulate(nothing, []).peak == 0


def test_a_free_tail_is_not_run_again():
    """Of two segments only the second has a last call whose result nobody reads in the second run."""
    needs = [frozenset([i - 1]) for i in range(4)]
    costs = [Cost(str(i), (i - 1,), (i,), 0, needs[i], 10.0, 4.0) for i in range(4)]
    calls = Calls(tuple(costs), dict.fromkeys(range(4), 1), (3,))
    assert simulate(calls, [Segment(0, 4, RECOMPUTED)]).extra == 36
    assert simulate(calls, [Segment(0, 2, RECOMPUTED), Segment(2, 4, RECOMPUTED)]).extra == 32


def test_a_long_skip_is_held_all_the_way():
    """A tensor that the first call makes for the last one has a place until its own gradient."""
    costs = [Cost(str(i), (i - 1,), (i,), needs=frozenset([i - 1])) for i in range(5)]
    costs[4] = costs[4]._replace(inputs=(3, 0), needs=frozenset([3, 0]))
    calls = Calls(tuple(costs), {0: 100, 1: 1, 2: 1, 3: 1, 4: 1}, (4,))
    step = simulate(calls, choose(calls, "every"))
    assert min(moment.held for moment in step.timeline) >= 100


def test_a_skip_waits_beside_its_gradient():
    """On the way back from its last reader to its first, which still needs it."""
    costs = [Cost(str(i), (i - 1,), (i,), needs=frozenset([i - 1])) for i in range(6)]
    costs[4] = costs[4]._replace(inputs=(3, 0), needs=frozenset([3]))
    calls = Calls(tuple(costs), {0: 100, 1: 10, 2: 10, 3: 10, 4: 110, 5: 1}, (5,))
    assert [cost.transient for cost in with_waiting(calls).costs] == [0, 0, 100, 100, 0, 0]
    blocks = choose(calls, "every")
    gradients = [
        [moment.held for moment in simulate(each, blocks).timeline if moment.what == "gradient"]
        for each in (calls, with_waiting(calls))
    ]
    assert [b - a for a, b in zip(*gradients)] == [0, 0, 100, 100, 0, 0]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(models(9))
def test_what_waits_beside_its_gradient(calls):
    """Each tensor that a call before needs, while gradients of others run, up to its last reader."""
    n = len(calls.costs)
    last = {key: i for i, cost in enumerate(calls.costs) for key in cost.outputs + cost.inputs}
    last.update(dict.fromkeys(calls.results, n))
    for i, (cost, found) in enumerate(zip(calls.costs, with_waiting(calls).costs)):
        before = {key for earlier in calls.costs[:i] for key in earlier.needs if key in calls.sizes}
        waiting = [key for key in before - cost.needs if last[key] > i]
        assert found.transient - cost.transient == sum(calls.sizes[key] for key in waiting)


@pytest.mark.parametrize(
    "plan, rule",
    [
        ([Segment(0, 2, KEPT)], "must hold all calls"),
        ([Segment(0, 2, KEPT), Segment(1, 3, KEPT)], "must follow each other"),
        ([Segment(0, 3, "again")], "is kept, or recomputed"),
        ([Segment(0, 3, KEPT, (Segment(0, 3, KEPT),))], "is kept, or recomputed"),
        ([Segment(0, 3, RECOMPUTED, (Segment(0, 2, KEPT),))], "must hold all calls"),
    ],
)
def test_plans_that_are_none(plan, rule):
    with pytest.raises(ValueError, match=rule):
        simulate(chain([1, 1, 1]), plan)


def uneven(n):
    """A chain whose sizes and work have nothing to do with each other."""
    rng = random.Random(3)
    sizes = [rng.choice([10, 100, 100, 200, 800, 3000]) for _ in range(n)]
    return chain(sizes, [rng.lognormvariate(0, 1.5) for _ in range(n)])


def share(calls, plan):
    step = simulate(calls, plan)
    return step.peak, step.extra / sum(cost.work for cost in calls.costs)


def test_a_thousand_equal_calls():
    calls = chain([MB] * 1000)
    peak, extra = share(calls, choose(calls, "sqrt"))
    assert 2 * 1000**0.5 * MB - 2 * MB < peak < 2 * 1000**0.5 * MB + 2 * MB and extra == 1
    peak, _ = share(calls, choose(calls))
    assert peak == 46 * MB  # segments of 44, 43, ... 1 calls, of which each leaves one activation
    peak, extra = share(calls, fit(calls, 500 * MB))
    assert peak <= 500 * MB and extra < 0.505
    with pytest.raises(BudgetError) as error:
        fit(calls, MB)
    assert error.value.smallest < 34 * MB  # with segments in segments


def test_long_models_lose_little():
    """A model of 300 calls, by all steps and by those that are tried in long models."""
    calls = uneven(300)
    exact, few = all_steps(calls), and_long_steps(short_steps(calls, 32), calls, 32, spread(calls, 100))
    assert least_peaks(few)[0] <= 1.01 * least_peaks(exact)[0]
    budget = plain(calls).peak // 3
    assert share(calls, least_work(few, budget))[1] <= share(calls, least_work(exact, budget))[1] + 0.005


def test_half_the_memory_for_a_long_model():
    calls = uneven(1000)
    _, extra = share(calls, fit(calls, plain(calls).peak // 2))
    assert extra < 0.07


@pytest.mark.parametrize("count", [10, 300, 999])
def test_any_number_of_segments_of_a_long_model(count):
    plan = choose(uneven(1000), count)
    assert len(plan) == count
    assert plan[-1].stop == 1000
