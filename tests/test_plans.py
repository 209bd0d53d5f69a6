"""Plans: what a plan says is what runs."""

import json

import numpy as np
import pytest
from model_proofs import prove_model, train
from models import Kit, make_chain, make_plain_nest, make_skips
from proofs import floats

from keras_remat import BudgetError, Plan, RematError, plan, recompute_all

BATCH = 4
X = (floats(4, 6),)
TRACED = pytest.mark.modes("function", "graph")


MAKERS = {
    # Without dropout: where it is in no block, Keras 2 draws other numbers than the plain model of tests.
    "chain": lambda kit: make_chain(kit, 16, rate=0),
    "skips": lambda kit: make_skips(kit, rate=0),
    "nested": make_plain_nest,
}


@TRACED
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_plan_is_what_runs(make, target, mode):
    chosen = []

    def convert(model):
        chosen.append(plan(model, batch_size=BATCH))
        # As text, in which it goes to other processes.
        recompute_all(model, strategy=Plan.from_json(chosen[0].to_json()))

    converted = train(target, mode, make, X, convert)
    plain = train(target, mode, make, X)
    tolerance = max(target.tolerance(mode), 1e-6)
    for one, other in zip(plain.result.steps, converted.result.steps):
        np.testing.assert_allclose(one.loss, other.loss, rtol=tolerance)
    (found,) = chosen
    assert found.peak_bytes < found.baseline_bytes
    blocks = [row for row in found.rows if row.is_block]
    assert blocks
    if converted.blocks is not None:
        assert converted.blocks == len(blocks)


@TRACED
def test_blocks_inside_blocks(target, mode):
    """The smallest budget needs calls that run a third time."""

    def make(kit):
        return make_chain(kit, 24, rate=0)

    def smallest(model):
        with pytest.raises(BudgetError) as caught:
            plan(model, memory_budget=1, batch_size=BATCH)
        return plan(model, memory_budget=caught.value.smallest, batch_size=BATCH)

    nested = []

    def convert(model):
        nested.append(smallest(model))
        assert nested[0].peak_bytes < plan(model, batch_size=BATCH).peak_bytes
        recompute_all(model, strategy=nested[0])

    plain, converted = train(target, mode, make, X), train(target, mode, make, X, convert)
    tolerance = max(target.tolerance(mode), 1e-6)
    for one, other in zip(plain.result.steps, converted.result.steps):
        np.testing.assert_allclose(one.loss, other.loss, rtol=tolerance)
    assert nested[0].extra_work > 1.0
    if target.traces(mode):
        assert converted.again > converted.first


@pytest.mark.modes("loop", "graph")
def test_numbers_with_a_plan(target, mode):
    def convert(model):
        recompute_all(model, strategy=plan(model, strategy=3, batch_size=BATCH))

    prove_model(target, mode, make_chain, X, convert)


def test_models_inside_keep_what_they_keep_outside(keras, L):
    """Also where one begins with a layer without weights, whose gradient goes on to one before it."""

    def layers():
        first = L.Activation("tanh", input_shape=(5,))
        return [first, L.Activation("sigmoid"), L.Dense(5), L.Dense(4), L.Activation("tanh")]

    def model(nest):
        inputs = keras.Input((6,))
        x, inner = L.Dense(5)(inputs), layers()
        if nest:
            x = keras.Sequential(inner)(x)
        else:
            for layer in inner:
                x = layer(x)
        return keras.Model(inputs, L.Dense(2)(x))

    plain, nested = (plan(model(nest), strategy="every", batch_size=BATCH) for nest in (False, True))
    assert nested.baseline_bytes == plain.baseline_bytes
    assert nested.peak_bytes == plain.peak_bytes


@pytest.mark.needs("calls of unbuilt models")
def test_a_model_that_is_not_built(keras, L):
    """Nothing is known of it but how many layers it has."""
    layers = [L.Dense(2) for _ in range(9)]
    found = plan(keras.Sequential(layers), strategy="sqrt")
    assert [row.calls for row in found.rows] == [3, 3, 3]
    assert "the shapes of its inputs are not known" in found.notes[0]


def test_budgets(target):
    model = make_chain(Kit(target), 16)
    best = plan(model, batch_size=BATCH)
    work = []
    for part in (1.0, 0.8, 0.6):
        budget = max(best.peak_bytes, int(part * best.baseline_bytes))
        found = plan(model, memory_budget=budget, batch_size=BATCH)
        assert found.peak_bytes <= budget
        work.append(found.extra_work)
    assert work[0] == 0.0 and work == sorted(work)
    with pytest.raises(BudgetError, match="must fit the memory budget. Received: 64 bytes"):
        plan(model, memory_budget="64B", batch_size=BATCH)


def test_open_dimensions(keras, L):
    model = keras.Sequential(
        [L.Conv1D(4, 1, activation="tanh", input_shape=(None, 4)), L.Conv1D(4, 1, activation="tanh")]
    )
    assert "128" in plan(model).notes[0]
    given = plan(model, input_shapes=(2, 64, 4))
    assert not given.notes
    kernel = 64  # of which PyTorch makes a copy
    assert 0 <= given.baseline_bytes * 32 - plan(model).baseline_bytes <= 31 * kernel
    with pytest.raises(RematError, match="must fit the model's inputs. Received: "):
        plan(model, input_shapes=(2, 64, 5))


def test_a_plan_of_another_model(target, keras, L):
    text = plan(make_chain(Kit(target), 8)).to_json()
    model = keras.Sequential([L.Dense(3, input_shape=(6,)), L.Dropout(0.5)])
    with pytest.raises(RematError, match="whose call 1 is a Dropout where .* has a Dense"):
        recompute_all(model, strategy=Plan.from_json(text))
    overlapping = json.loads(text)
    overlapping["model"]["blocks"] = [[0, 3, []], [2, 4, []]]
    with pytest.raises(RematError, match="and blocks .*Make a plan of this model"):
        recompute_all(make_chain(Kit(target), 8), strategy=Plan.from_json(json.dumps(overlapping)))
    later = json.dumps(dict(json.loads(text), version=9))
    for wrong in ("", "{}", "[1]", later):
        with pytest.raises(RematError, match="Received: "):
            Plan.from_json(wrong)


def test_the_table(target):
    found = plan(make_chain(Kit(target), 16), batch_size=1000)
    lines = str(found).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert sum("recompute" in line for line in lines) == sum(row.is_block for row in found.rows)
    every = str(plan(make_skips(Kit(target)), strategy="every"))
    assert "This block saves nothing: " in every


WRONG = {
    "a layer": lambda keras: plan(keras.layers.Dense(2)),
    "strategy": lambda keras: plan(make(keras), strategy="some"),
    "budget and strategy": lambda keras: plan(make(keras), strategy=2, memory_budget="8GB"),
    "budget": lambda keras: plan(make(keras), memory_budget="much"),
    "negative budget": lambda keras: plan(make(keras), memory_budget=-1),
    "batch size": lambda keras: plan(make(keras), batch_size=0),
    "shapes": lambda keras: plan(make(keras), input_shapes="big"),
    "plan and exclude": lambda keras: recompute_all(make(keras), strategy=plan(make(keras)), exclude="dense"),
}


def make(keras):
    return keras.Sequential([keras.layers.Dense(3, name="dense", input_shape=(6,))])


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_arguments(wrong, keras):
    with pytest.raises(RematError, match="Received: "):
        wrong(keras)
