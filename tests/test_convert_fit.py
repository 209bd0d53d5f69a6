"""Converted models in `fit`: built late, compiled before or after, with several inputs and outputs."""

import pytest
from model_proofs import COPY, count_again, cut
from models import Kit, make_chain, set_weights
from proofs import assert_same, floats, get_weights

from keras_remat import RematError, recompute_all, restore

X = (floats(4, 6),)


def make_late(target):
    """A Sequential that is built by its first batch."""
    kit = Kit(target)
    layers = [kit.Dense(5, activation="tanh", kernel_initializer=target.initializer(3)) for _ in range(4)]
    return kit.Sequential([*layers, kit.Dense(2, kernel_initializer=target.initializer(3))])


@pytest.mark.modes("fit", "fit-eager")
def test_chain_without_input_shape(target, mode):
    """A Sequential that is built long after it was converted; one without a graph has chosen blocks."""

    def trained(convert):
        target.reset()
        model = convert(make_late(target))
        model.compile(target.sgd(), "mse", run_eagerly=mode == "fit-eager")
        y = floats(4, 2, seed=5)
        losses = model.fit(X[0], y, epochs=3, shuffle=False, verbose=0).history["loss"]
        return losses, get_weights(model), getattr(model, "input_shape", None)

    def converted(model):
        return recompute_all(model, match=target.layer("Dense")) if target.is_symbolic else cut(model)

    plain, ours = trained(lambda model: model), trained(converted)
    assert plain[2] == ours[2]
    assert_same("losses", plain[0], ours[0], 1e-6)
    for i, weights in enumerate(zip(plain[1], ours[1])):
        assert_same(f"weight {i}", *weights, tolerance=1e-6)


@pytest.mark.needs("version 1 models")
@pytest.mark.parametrize("convert", [recompute_all, cut])
def test_chain_that_has_no_graph_yet(convert, target):
    """Keras before TensorFlow 2 knows nothing of such a chain but its layers: it says what to change."""
    target.reset()
    model = make_late(target)
    with pytest.raises(RematError, match=f"'{model.name}', which has none yet. Give its first layer"):
        convert(model)


@pytest.mark.modes("fit", "fit-eager")
@pytest.mark.parametrize("convert", [cut, restore])
def test_between_two_fits(convert, target, mode):
    """A compiled model stays compiled and goes on with the state of its optimizer."""

    def trained(first, second):
        target.reset()
        model = make_concatenated_chain(Kit(target))
        set_weights(model)
        first(model)
        optimizer = target.keras.optimizers.SGD(learning_rate=0.1, momentum=0.9)
        options = {"run_eagerly": True} if mode == "fit-eager" else {}
        model.compile(optimizer, "mse", **options)
        fit = {"shuffle": False, "verbose": 0, "batch_size": 4}
        x, y = floats(8, 6), floats(8, 2, seed=5)
        losses = model.fit(x, y, epochs=2, **fit).history["loss"]
        model.predict(x)
        second(model)
        losses += model.fit(x, y, epochs=2, **fit).history["loss"]
        return losses, get_weights(model), model.predict(x), model.evaluate(x, y, verbose=0)

    plain = trained(lambda model: None, lambda model: None)
    other = trained(cut if convert is restore else lambda model: None, convert)
    assert plain[0][0] > plain[0][-1]
    for i, numbers in enumerate(zip(plain[1], other[1])):
        assert_same(f"weight {i}", *numbers, tolerance=1e-6)
    assert_same("losses", plain[0], other[0], 1e-6)
    assert_same("prediction", plain[2], other[2], 1e-6)
    assert_same("evaluation", plain[3], other[3], 1e-6)


def make_concatenated_chain(kit):
    """A functional model without state of its own."""
    x = inputs = kit.Input((6,))
    for _ in range(5):
        x = kit.Concatenate()([kit.Dense(4, activation="tanh")(x), x])
    return kit.Model(inputs, kit.Dense(2)(x))


@pytest.mark.modes("fit")
def test_conversion_between_fits_takes_effect(target, mode):
    """What `fit` has traced of the plain model is not used again, nor the other way round."""
    target.reset()
    kit = Kit(target, marked=True)
    model = make_chain(kit)
    model.compile(target.sgd(), "mse")
    x, y = floats(4, 6), floats(4, 2, seed=5)
    seen = []
    for change in (lambda model: None, cut, restore):
        change(model)
        kit.take_runs()
        model.fit(x, y, verbose=0)
        seen.append(count_again(kit.runs()) if not target.is_symbolic else count_copies(target))
    assert seen[0] < seen[1]
    assert target.is_symbolic or seen[2] == seen[0]


def count_copies(target):
    """How many ops run again in the one graph in which everything is."""
    graph = target.symbolic(target.tf.compat.v1.get_default_graph)()
    return sum(bool(COPY.match(op.name)) for op in graph.get_operations())


@pytest.mark.modes("fit", "fit-eager")
def test_several_inputs_and_outputs(target, mode):
    """Given by name; outputs have losses of their own."""

    def trained(convert):
        target.reset()
        kit = Kit(target)
        a, b = kit.Input((6,), name="a"), kit.Input((4,), name="b")
        x = kit.Dense(5, activation="tanh")(a)
        y = kit.Dense(5, activation="tanh")(kit.Concatenate()([x, b]))
        one = kit.Dense(2, name="one")(y)
        other = kit.Dense(3, name="other")(kit.Add()([x, y]))
        model = kit.Model([a, b], [one, other])
        set_weights(model)
        convert(model)
        options = {"run_eagerly": True} if mode == "fit-eager" else {}
        model.compile(target.sgd(), {"one": "mse", "other": "mae"}, **options)
        data = {"a": floats(4, 6), "b": floats(4, 4, seed=1)}
        y = {"one": floats(4, 2, seed=2), "other": floats(4, 3, seed=3)}
        history = model.fit(data, y, epochs=3, shuffle=False, verbose=0).history
        return history, get_weights(model), model.predict(data)

    plain, converted = trained(lambda model: None), trained(cut)
    assert sorted(plain[0]) == sorted(converted[0])
    for name in plain[0]:
        assert_same(name, plain[0][name], converted[0][name], 1e-6)
    for i, numbers in enumerate(zip(plain[1] + plain[2], converted[1] + converted[2])):
        assert_same(f"number {i}", *numbers, tolerance=1e-6)
