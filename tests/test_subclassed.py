"""Subclassed models, converted in place: a list of like blocks by itself, or what `match` chooses."""

import pytest
from model_proofs import count_again
from models import Kit
from proofs import assert_same, floats, get_weights

from keras_remat import RematError, recompute_all, restore
from keras_remat.families import family_of

MODES = pytest.mark.modes("loop", "function", "fit", "fit-eager")
X, Y = floats(4, 6), floats(4, 2, seed=5)


def make_blocks(kit, count):
    """Models of two layers with state; a custom layer of Keras 2.3.1 would not find their weights."""
    keras = kit.keras

    class Block(keras.models.Model):
        def __init__(self, seed, **kwargs):
            super().__init__(**kwargs)
            self.dense = kit.Dense(6, activation="tanh", kernel_initializer=kit.target.initializer(seed))
            self.norm = kit.BatchNormalization(momentum=0.7)
            self.add = keras.layers.Add()

        def call(self, inputs, training=None):
            return self.add([inputs, self.norm(self.dense(inputs), training=training)])

        def compute_output_shape(self, input_shape):
            return input_shape

    return [Block(seed=i + 1, name=f"block_{i}") for i in range(count)]


def make_model(kit, holder="list", count=3):
    """A model that holds its blocks in a list, or by name."""
    keras = kit.keras

    class Model(keras.models.Model):
        def __init__(self):
            super().__init__(name="subclassed")
            blocks = make_blocks(kit, count)
            if holder == "list":
                self.blocks = blocks
            for i, block in enumerate(blocks):  # Keras 2.3.1 looks for weights here, not in lists
                setattr(self, f"held_{i}", block)
            self.calls = count
            initializer = kit.target.initializer(9)
            self.last = keras.layers.Dense(2, name="last", kernel_initializer=initializer)

        def call(self, inputs, training=None):
            x = inputs
            for i in range(self.calls):
                x = getattr(self, f"held_{i}")(x, training=training)
            return self.last(x)

    return Model()


def trained(target, mode, change, holder="list"):
    """Losses, weights and predictions, how often blocks ran in the last step, and ran again."""
    import steps

    target.reset()
    kit = Kit(target, marked=True)
    model = make_model(kit, holder)
    change(model)
    trainer = steps.trainer(target, mode, model)
    if mode in ("loop", "function"):
        trainer.predict([X])  # builds the model
    taken = trainer.train([X], Y, 1)
    if not target.traces(mode):
        kit.take_runs()
    taken += trainer.train([X], Y, 1)
    again = count_again(kit.runs())
    return taken, get_weights(model), trainer.predict([X]), again


def assert_exact(target, mode, change, again, holder="list"):
    plain = trained(target, mode, lambda model: None, holder)
    converted = trained(target, mode, change, holder)
    for one, other in zip(plain[0], converted[0]):
        assert_same("loss", one.loss, other.loss, 1e-6)
        for grads in zip(one.grads, other.grads):
            assert_same("gradient", *grads, tolerance=1e-5)
    for pair in zip(plain[1] + [plain[2]], converted[1] + [converted[2]]):
        assert_same("weight", *pair, tolerance=max(1e-6, target.tolerance(mode)))
    assert converted[3] - plain[3] == again


@MODES
def test_list_of_like_blocks(target, mode):
    assert_exact(target, mode, recompute_all, again=6)


@MODES
@pytest.mark.parametrize("match, again", [("block_.", 6), ("block_1", 2), ("dense.*", 3)])
def test_match(match, again, target, mode):
    assert_exact(target, mode, lambda m: recompute_all(m, match=match), again, holder="names")


@pytest.mark.modes("loop", "fit")
def test_class_and_exclude(target, mode, keras):
    def convert(model):
        kind = keras.layers.BatchNormalization
        recompute_all(model, match=lambda layer: isinstance(layer, kind))
        recompute_all(model, exclude="block_0")

    assert_exact(target, mode, convert, again=4)


@pytest.mark.modes("loop", "fit")
def test_restore(target, mode):
    assert_exact(target, mode, lambda m: restore(recompute_all(m)), again=0)


def test_no_list_and_no_match(target):
    model = make_model(Kit(target), holder="names")
    with pytest.raises(RematError, match="list of layers of one class.*Received: 'subclassed'"):
        recompute_all(model)
    with pytest.raises(RematError, match="Received: match='nobody'"):
        recompute_all(model, match="nobody")


ASKED = [{"strategy": "sqrt"}, {"strategy": 2}, {"strategy": "measured"}, {"memory_budget": "1MB"}]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_there_is_no_graph_to_cut(asked, target):
    model = recompute_all(make_model(Kit(target)), strategy="every")
    with pytest.raises(RematError, match="graph of a Sequential.*Received: .* for 'subclassed'"):
        recompute_all(model, **asked)
    assert family_of(model).is_converted(model.held_0)


def test_everything_is_excluded(target):
    with pytest.raises(RematError, match="Received: "):
        recompute_all(make_model(Kit(target)), exclude=".*")


@pytest.mark.modes("fit", "fit-eager")
def test_between_two_fits(target, mode):
    def run(change):
        target.reset()
        kit = Kit(target, marked=True)
        model = make_model(kit)
        optimizer = target.keras.optimizers.SGD(learning_rate=0.05, momentum=0.9)
        options = {"run_eagerly": True} if mode == "fit-eager" else {}
        model.compile(optimizer, "mse", **options)
        fit = {"epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(X, Y, **fit)
        change(model)
        model.fit(X, Y, **fit)
        again = count_again(kit.runs())
        return get_weights(model), model.predict(X), again

    plain, converted = run(lambda model: None), run(recompute_all)
    assert plain[2] < converted[2]
    for pair in zip(plain[0] + [plain[1]], converted[0] + [converted[1]]):
        assert_same("weight", *pair, tolerance=1e-5)


@pytest.mark.modes("fit")
def test_weight_files(target, mode, tmp_path):
    def fitted(change, name):
        target.reset()
        model = make_model(Kit(target))
        change(model)
        model.compile(target.sgd(), "mse")
        model.fit(X, Y, verbose=0)
        model.save_weights(str(tmp_path / name))
        return model.predict(X)

    def loaded(change, name):
        target.reset()
        model = make_model(Kit(target))
        change(model)
        model.compile(target.sgd(), "mse")
        model.train_on_batch(X, Y)
        model.load_weights(str(tmp_path / name))
        return model.predict(X)

    for first, second in [(recompute_all, lambda m: None), (lambda m: None, recompute_all)]:
        assert_same("prediction", fitted(first, "w.weights.h5"), loaded(second, "w.weights.h5"), 1e-6)
