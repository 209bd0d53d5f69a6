"""A report says what a trace of the whole model says, and names blocks that save nothing."""

import copy

import pytest
from models import Kit, each, in_a_row, make_chain, make_plain_nest, make_skips
from test_costs import costs_of, kept, whole

from keras_remat import (
    Recompute,
    RecomputeSequential,
    RematError,
    memory_report,
    plan,
    recompute_all,
    recompute_enabled,
    restore,
)
from keras_remat.families import family_of

BATCH = 4

CONVERSIONS = {
    "auto": {},
    "sqrt": {"strategy": "sqrt"},
    "every": {"strategy": "every"},
    "match": {"match": "dense.*"},
}


@each("convolutions", "inputs", "nested", "penalties")
def test_of_a_plain_model(case, target, keras):
    model = case.make(Kit(target))
    report = memory_report(model, batch_size=BATCH)
    with recompute_enabled(False):
        assert report.before_bytes == report.after_bytes == kept(costs_of(whole(keras, model))) > 0
    assert report.peak_bytes == report.baseline_bytes == plan(model, batch_size=BATCH).baseline_bytes
    assert not report.blocks and "Nothing of this model is recomputed" in str(report)


@pytest.mark.needs("tensorflow", "eager variables")  # where the trace of a converted model is one of blocks
@pytest.mark.parametrize("options", CONVERSIONS.values(), ids=CONVERSIONS)
@pytest.mark.parametrize("make", [make_chain, make_skips])
def test_of_a_converted_model(make, options, target, keras):
    model = recompute_all(make(Kit(target), rate=0), **options)  # on Keras 2, dropout keeps a seed as well
    report = memory_report(model, batch_size=BATCH)
    found = kept(costs_of(whole(keras, model)))
    # In graphs, what a block takes is not kept if nothing in its second run needs it: of a lone addition.
    assert report.after_bytes >= found if options == {"strategy": "every"} else report.after_bytes == found
    with recompute_enabled(False):
        assert report.before_bytes == kept(costs_of(whole(keras, model)))
    assert memory_report(restore(model), batch_size=BATCH).after_bytes == report.before_bytes


@pytest.mark.parametrize("make", [make_chain, make_skips, make_plain_nest])
def test_of_a_plan(make, target):
    model = make(Kit(target))
    chosen = plan(model, batch_size=BATCH)
    report = memory_report(recompute_all(model, strategy=chosen), batch_size=BATCH)
    assert (report.baseline_bytes, report.peak_bytes) == (chosen.baseline_bytes, chosen.peak_bytes)
    blocks = [row for row in chosen.rows if row.is_block]
    assert [(b.first, b.last, b.calls) for b in report.blocks] == [(b.first, b.last, b.calls) for b in blocks]
    assert [row.block for row in report.layers if row.block] == [
        i for i, block in enumerate(blocks, 1) for _ in range(block.calls)
    ]


def test_blocks_inside_blocks(target):
    model = make_chain(Kit(target), 24, rate=0)
    one_level = plan(model, batch_size=BATCH)
    smaller = plan(model, memory_budget=one_level.peak_bytes - 1, batch_size=BATCH)
    report = memory_report(recompute_all(model, strategy=smaller), batch_size=BATCH)
    assert report.peak_bytes == smaller.peak_bytes < one_level.peak_bytes


def test_wrappers(target, keras, L):
    """Of a wrapper, what it takes is kept; of a list of layers, what its segments take."""

    def model(wrap):
        layers = [L.Dense(8, activation="tanh", name=f"dense_{i}") for i in range(6)]
        x = inputs = keras.Input((6,))
        x = L.Dense(6, name="first")(x)
        if wrap:
            block = in_a_row(keras, (6,), layers[:2])
            x = RecomputeSequential(layers[2:], segments=2, name="list")(Recompute(block)(x))
        else:
            for layer in layers:
                x = layer(x)
        return keras.Model(inputs, L.Dense(2, name="last")(x))

    report, other = (memory_report(model(wrap), batch_size=BATCH) for wrap in (True, False))
    assert report.before_bytes == other.before_bytes
    width, first = 4 * BATCH * 8, 4 * BATCH * 6
    assert report.after_bytes == first + 3 * width  # inputs of blocks, and of the last layer
    assert [block.calls for block in report.blocks] == [1, 2, 2]
    assert [row.name for row in report.layers][2:] == ["dense_2", "dense_3", "dense_4", "dense_5", "last"]
    assert not report.warnings


def test_blocks_that_save_nothing(target, keras, L):
    model = in_a_row(keras, (8,), [L.Dense(8, name=f"dense_{i}") for i in range(4)])
    recompute_all(model, strategy="every")
    report = memory_report(model, batch_size=BATCH)
    assert report.before_bytes == report.after_bytes
    assert report.warnings == [f"This block saves nothing: dense_{i}" for i in range(4)]
    assert all(warning in str(report) for warning in report.warnings)


def test_a_copy_runs_plainly(target):
    model = recompute_all(make_chain(Kit(target), 12))
    family = family_of(model)
    assert family.segments(model)
    if target.has("copies"):
        assert family.segments(copy.deepcopy(model)) is None
    assert family.segments(restore(model)) is None


def test_the_table(target, keras, L):
    short = str(memory_report(make_chain(Kit(target), 8), batch_size=BATCH)).splitlines()
    assert sum("dense_" in line for line in short) == 8
    layers = [L.Dense(60 if i % 9 == 0 else 6, name=f"a_layer_with_a_long_name_{i}") for i in range(90)]
    model = recompute_all(in_a_row(keras, (6,), layers), strategy=10)
    report = memory_report(model, batch_size=BATCH)
    lines = str(report).splitlines()
    assert len(report.layers) == 90 and len(lines) < 70
    assert all(len(line) <= 100 for line in lines)
    assert [line.split()[0] for line in lines if " 960 B " in line and "calls" not in line] == [
        f"a_layer_with_a_long_name_{i}" for i in range(0, 90, 9)
    ]


@pytest.mark.parametrize("make", [make_chain, make_skips])
def test_estimates(make, target, monkeypatch):
    """Where nothing can be traced, a report says so, and sees the blocks all the same."""
    model = make(Kit(target))
    monkeypatch.setattr(type(family_of(model)), "input_specs", lambda *args: None)
    plain = memory_report(model, batch_size=BATCH)
    converted = memory_report(recompute_all(model, strategy=2), batch_size=BATCH)
    assert len(converted.blocks) == 2 and not plain.blocks
    assert converted.after_bytes < plain.after_bytes == converted.before_bytes
    assert all("estimates by the sizes of outputs" in report.notes[0] for report in (plain, converted))


WRONG = {
    "a layer": lambda keras: memory_report(keras.layers.Dense(2)),
    "batch size": lambda keras: memory_report(make(keras), batch_size=0),
    "shapes": lambda keras: memory_report(make(keras), input_shapes=(3, 7)),
}


def make(keras):
    return in_a_row(keras, (6,), [keras.layers.Dense(3, name="dense")])


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_arguments(wrong, keras):
    with pytest.raises(RematError, match="Received: "):
        wrong(keras)
