"""Whole models, converted in place: the three proofs, and which layers become which blocks."""

import re
import warnings

import numpy as np
import pytest
import steps
from model_proofs import SOME, cut, prove_model, train
from models import ZOO, Kit, each, make_chain, make_nested, make_plain_nest, make_plain_skips, make_skips
from proofs import floats

from keras_remat import RematError, UnsupportedFamilyError, plan, recompute_all, restore

X = (floats(4, 6),)
TRACED = pytest.mark.modes("function", "graph")


@pytest.mark.modes("loop", "function", "graph")
@each(*ZOO)
def test_model(case, target, mode):
    prove_model(target, mode, case.make, case.x, cut, unread=case.unread, exact=case.exact)


@pytest.mark.modes("loop", "graph")
@pytest.mark.parametrize("strategy", ["sqrt", "every", 1, 3, 100])
def test_strategy(strategy, target, mode):
    def convert(model):
        recompute_all(model, strategy=strategy)

    prove_model(target, mode, make_skips, X, convert)


# XLA's random numbers are new ones in every run, so there is no dropout here.
@pytest.mark.modes("function", "fit-eager", "xla")
def test_every_mode(target, mode):
    prove_model(target, mode, ZOO["convolutions"].make, ZOO["convolutions"].x, cut)


@TRACED
@pytest.mark.parametrize("strategy, blocks", [("every", 9), ("sqrt", 3), (1, 1), (2, 2), (5, 5), (99, 9)])
def test_number_of_blocks(strategy, blocks, target, mode):
    trained = train(target, mode, make_chain, X, lambda m: recompute_all(m, strategy=strategy))
    assert trained.blocks == blocks


@TRACED
def test_what_is_chosen_by_itself(target, mode):
    """What `plan` says, which keeps less and runs again all that it says."""
    plans = []

    def convert(model):
        plans.append(plan(model))
        recompute_all(model)

    trained = prove_model(target, mode, lambda kit: make_chain(kit, 16), X, convert, again=SOME)
    blocks = [row for row in plans[0].rows if row.is_block]
    assert plans[0].peak_bytes < plans[0].baseline_bytes / 1.5
    assert len(blocks) == trained.blocks > 1


def test_nothing_to_gain(keras):
    model = keras.Sequential([keras.layers.InputLayer((6,)), keras.layers.Dense(2)])
    with pytest.warns(UserWarning, match="would lower the predicted peak of 'sequential.*match="):
        recompute_all(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recompute_all(model, memory_budget="1GB")  # fits without


@TRACED
def test_budget_of_a_model(target, mode):
    """A smaller budget runs more of the model again."""

    def again(part):
        def convert(model):
            budget = int(part * plan(model, batch_size=9).baseline_bytes)
            recompute_all(model, memory_budget=budget, batch_size=9)

        trained = train(target, mode, lambda kit: make_chain(kit, 16), X, convert)
        return trained.first + trained.again  # on JAX nobody tells them apart

    assert again(0.8) < again(0.6)


@TRACED
def test_models_inside_are_cut_by_themselves(target, mode):
    trained = train(target, mode, make_nested, X, lambda m: recompute_all(m, strategy="every"))
    assert trained.blocks == 2 + 3 * 4 + 2


CHOICES = {
    "name": ("dense_1", 1),
    "whole name only": (["dense_1", "dens"], 1),
    "regular expression": ("dense_[0-9]", 3),
    "compiled": (re.compile("(norm|dense)_0"), 2),
    "class": ("BatchNormalization", 3),
    "predicate": (lambda layer: layer.name.endswith("_2"), 3),
    "list": (["output", re.compile("add_.")], 4),
    "tuple of all kinds": (("output", lambda layer: layer.name == "norm_1", "Add"), 5),
}


def resolve(choice, keras):
    """Names of classes stand for classes: a table at the top of a file knows no Keras."""
    if isinstance(choice, (list, tuple)):
        return type(choice)(resolve(c, keras) for c in choice)
    return getattr(keras.layers, choice, choice) if isinstance(choice, str) else choice


@pytest.mark.modes("loop", "graph")
@pytest.mark.parametrize("choice, count", CHOICES.values(), ids=CHOICES)
def test_match(choice, count, target, keras, mode):
    def convert(model):
        recompute_all(model, match=resolve(choice, keras))

    prove_model(target, mode, make_plain_skips, X, convert, again=count)


@pytest.mark.modes("loop", "graph")
@pytest.mark.parametrize("choice, count", CHOICES.values(), ids=CHOICES)
def test_exclude(choice, count, target, keras, mode):
    def convert(model):
        recompute_all(model, strategy="every", exclude=resolve(choice, keras))

    prove_model(target, mode, make_plain_skips, X, convert, again=10 - count)


@pytest.mark.modes("loop", "graph")
def test_match_and_exclude(target, keras, mode):
    def convert(model):
        recompute_all(model, match=keras.layers.Dense, exclude="dense_.")

    prove_model(target, mode, make_plain_skips, X, convert, again=1)


@pytest.mark.modes("loop", "graph")
@pytest.mark.parametrize("strategy", ["auto", "every", 2])
def test_exclude_everything(strategy, target, mode):
    def convert(model):
        recompute_all(model, strategy=strategy, exclude=".*")

    prove_model(target, mode, make_plain_skips, X, convert, again=0)


@pytest.mark.modes("loop", "graph")
def test_match_inside_models(target, mode):
    """A model that matches is one block, whatever matches in it; `shared` is called twice."""

    def convert(model):
        recompute_all(model, match=["shared", "activation.*", "add.*"])

    prove_model(target, mode, make_plain_nest, X, convert, again=2 * 4 + 2)


@pytest.mark.modes("loop", "function", "graph")
def test_restore(target, mode):
    def convert(model):
        assert restore(cut(model)) is model

    prove_model(target, mode, make_plain_nest, X, convert, again=0)


@pytest.mark.modes("loop", "graph")
def test_restore_of_matches(target, mode):
    def convert(model):
        restore(recompute_all(model, match="shared"))

    prove_model(target, mode, make_plain_nest, X, convert, again=0)


def test_restore_of_a_plain_model(target):
    model = make_chain(Kit(target))
    before = dict(vars(model))
    assert restore(model) is model
    assert vars(model) == before


@TRACED
def test_second_conversion_replaces_the_first(target, mode):
    def convert(model):
        recompute_all(model, strategy="every")
        recompute_all(model, match="dense_.")
        assert recompute_all(recompute_all(model, strategy=2), strategy=3) is model

    assert prove_model(target, mode, make_chain, X, convert).blocks == 3


@pytest.mark.modes("loop", "function")
def test_dicts_in_and_out(target, mode):
    def make(kit):
        inputs = {"a": kit.Input((6,), name="a"), "b": kit.Input((6,), name="b")}
        x = kit.Dense(5, activation="tanh")(inputs["a"])
        y = kit.Dense(5, activation="tanh")(kit.Add()([x, kit.Dense(5)(inputs["b"])]))
        inner = kit.Model(inputs, {"x": kit.Dense(3)(y), "y": y}, name="inner")
        a, b = kit.Input((6,), name="c"), kit.Input((6,), name="d")
        outputs = inner({"b": b, "a": a})
        return kit.Model([a, b], kit.head()([outputs["x"], outputs["y"]]))

    prove_model(target, mode, make, (floats(4, 6), floats(4, 6, seed=1)), cut)


def test_what_is_no_model(keras):
    with pytest.raises(UnsupportedFamilyError, match="takes a model. Received: the layer 'dense'"):
        recompute_all(keras.layers.Dense(2, name="dense"))
    with pytest.raises(UnsupportedFamilyError, match="Received: 3"):
        recompute_all(3)
    with pytest.raises(UnsupportedFamilyError, match="Received"):
        restore(keras.layers.Dense(2))


WRONG = {
    "unknown strategy": {"strategy": "some"},
    "no segments": {"strategy": 0},
    "negative segments": {"strategy": -1},
    "bool as a number": {"strategy": True},
    "half a segment": {"strategy": 2.0},
    "no strategy": {"strategy": None},
    "list as a strategy": {"strategy": [1, 2]},
    "array as a strategy": {"strategy": np.array([1, 2])},
    "number to match": {"match": 3},
    "number in a list": {"match": ["dense_0", 3]},
    "broken regular expression": {"match": "dense_("},
    "nothing matches": {"match": "nobody"},
    "all that matches is excluded": {"match": "dense_0", "exclude": "dense_0"},
    "number to exclude": {"exclude": 3},
    "nothing is excluded": {"exclude": "nobody"},
    "strategy and match": {"strategy": "sqrt", "match": "dense_0"},
    "policy": {"policy": "dots"},
    "budget and match": {"memory_budget": "8GB", "match": "dense_0"},
    "budget and strategy": {"memory_budget": "8GB", "strategy": 2},
    "budget": {"memory_budget": "much"},
    "batch": {"batch_size": 0},
    "budget that nothing meets": {"memory_budget": 1},
}


@TRACED
def test_wrong_arguments(target, mode):
    """Each is refused with what was received, and the model stays what it was."""

    def convert(model):
        recompute_all(model, strategy=4)
        for name, wrong in WRONG.items():
            with pytest.raises(RematError, match="Received: "):
                pytest.fail(f"{name}: {recompute_all(model, **wrong)}")

    assert train(target, mode, make_chain, X, convert).blocks == 4


@pytest.mark.modes("loop")
def test_exclude_inside(target, mode):
    """What is left out is never recomputed, also where it lies in a small model inside."""

    def convert(model):
        recompute_all(model, strategy="sqrt", exclude="once_first")

    prove_model(target, mode, make_plain_nest, X, convert, again=16 - 1)


@pytest.mark.modes("loop")
def test_layers_added_after_conversion(target, keras, mode):
    layers = [keras.layers.InputLayer((6,)), *(keras.layers.Dense(4) for _ in range(3))]
    model = cut(keras.Sequential(layers))
    model.add(keras.layers.Dense(2))
    y = floats(4, 2)
    with pytest.raises(RematError, match="must keep its layers. Received: "):
        steps.trainer(target, mode, model).train(X, y, 1)
    cut(model)
    assert steps.trainer(target, mode, model).train(X, y, 1)[0].loss > 0


@pytest.mark.modes("loop", "fit")
def test_inputs_that_keras_casts(target, keras, mode):
    """Bytes for a model of floats: Keras casts them, from TensorFlow 2.2 on."""
    x = np.arange(24, dtype="uint8").reshape(4, 6)
    results = []
    for convert in (lambda model: model, cut):
        target.reset()
        layers = [keras.layers.Dense(4, kernel_initializer=target.initializer(i)) for i in range(3)]
        model = convert(keras.Sequential([keras.layers.InputLayer((6,)), *layers]))
        given = x if mode == "fit" or target.has("casts") else x.astype("float32")
        (step,) = steps.trainer(target, mode, model).train([given], np.zeros((4, 4), "float32"), 1)
        results.append([step.loss, *(grad.sum() for grad in step.grads)])
    np.testing.assert_allclose(*results, rtol=1e-6)


@TRACED
def test_predicate_that_raises(target, mode):
    """What the user's own code raises comes through, and the model is the plain one."""

    def exclude(layer):
        if layer.name == "dense_1":
            raise KeyError(layer.name)
        return False

    def convert(model):
        with pytest.raises(KeyError):
            recompute_all(model, strategy="every", exclude=exclude)

    assert train(target, mode, make_chain, X, convert).blocks == 0


def test_error_lists_the_layers(target):
    with pytest.raises(RematError, match="matches none of: dense_0, "):
        recompute_all(make_chain(Kit(target)), match="Dense_0")
