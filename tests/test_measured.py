"""The plan that is measured to hold the least is taken, and measuring leaves a model as it was."""

import numpy as np
import pytest
from models import Kit, make_chain
from proofs import get_weights

from keras_remat import RematError, max_batch_size, plan, recompute_all
from keras_remat.families import family_of

BATCH = 4


class Meter:
    """Stands for a device: says what it is told to, and changes the model as a step does."""

    def __init__(self, peaks, error=None):
        self.peaks, self.error, self.segments = list(peaks), error, []

    def check_steps(self):
        pass

    def peak_of_step(self, model, specs):
        assert [tuple(shape) for shape, _ in specs] == [(BATCH, 6)]
        family = family_of(model)
        self.segments.append(family.segments(model))
        for variable in model.trainable_weights:
            variable.assign(variable + 1.0)
        if self.error is not None:
            raise self.error
        return self.peaks[len(self.segments) - 1]


def measure(target, monkeypatch, meter):
    model = make_chain(Kit(target), 16)
    monkeypatch.setattr(type(family_of(model)), "memory", lambda self: meter)
    return model


needs_steps = pytest.mark.needs("eager variables")


@needs_steps
@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_best_is_taken(best, target, monkeypatch):
    meter = Meter([10 * (i != best) + 5 for i in range(9)])
    model = measure(target, monkeypatch, meter)
    before = get_weights(model)
    found = plan(model, strategy="measured", batch_size=BATCH)
    assert len(meter.segments) > 2
    chosen = [len(s.calls) for s in meter.segments[best] if s.is_block]
    assert [row.calls for row in found.rows if row.is_block] == chosen
    assert not family_of(model).is_converted(model)
    for one, other in zip(before, get_weights(model)):
        np.testing.assert_array_equal(one, other)
    del meter.segments[:]
    recompute_all(model, strategy="measured", batch_size=BATCH)
    assert [len(s.calls) for s in family_of(model).segments(model) if s.is_block] == chosen


@needs_steps
def test_of_like_plans_the_one_with_the_least_work(target, monkeypatch):
    model = measure(target, monkeypatch, Meter([1000] * 9))
    assert plan(model, strategy="measured", batch_size=BATCH).extra_work < plan(model).extra_work


@needs_steps
def test_a_step_that_fails(target, monkeypatch):
    model = measure(target, monkeypatch, Meter([], MemoryError("device")))
    before = get_weights(model)
    with pytest.raises(MemoryError, match="device"):
        plan(model, strategy="measured", batch_size=BATCH)
    assert not family_of(model).is_converted(model)
    for one, other in zip(before, get_weights(model)):
        np.testing.assert_array_equal(one, other)


@needs_steps
def test_of_a_converted_model(target, monkeypatch):
    """It has its blocks again, and is measured without them."""
    meter = Meter([5 + i for i in range(9)])
    model = recompute_all(measure(target, monkeypatch, meter), strategy=2)
    family = family_of(model)
    before = family.segments(model)
    found = plan(model, strategy="measured", batch_size=BATCH)
    assert family.is_converted(model) and family.segments(model) == before
    assert before not in meter.segments
    chosen = [len(s.calls) for s in meter.segments[0] if s.is_block]
    assert [row.calls for row in found.rows if row.is_block] == chosen


@pytest.mark.needs("jax")
def test_steps_of_jax(target):
    """XLA is asked what each plan takes; in a long chain they differ."""
    model = make_chain(Kit(target), 16)
    memory, peaks = family_of(model).memory(), []
    for strategy in (None, "sqrt", "measured"):
        if strategy is not None:
            recompute_all(model, strategy=strategy, batch_size=512)
        peaks.append(memory.peak_of_step(model, [((512, 6), "float32")]))
    assert peaks[2] <= min(peaks[:2])


def test_where_nothing_can_be_measured(target, keras):
    model = make_chain(Kit(target))
    with pytest.raises(RematError, match="Received: "):
        max_batch_size(model, "1GB", strategy="measured")
    if target.framework_name != "jax":
        with pytest.raises(RematError, match="measured.* Received: "):
            plan(model, strategy="measured")
