"""Bad input and failures: the right error, what it says, and nothing left open or changed behind it."""

import re

import numpy as np
import pytest
import steps
from custom import make_layer
from proofs import assert_same, floats, get_weights

import keras_remat
from keras_remat import (
    Recompute,
    RecomputeMismatchError,
    RecomputeSequential,
    RematError,
    UnsupportedFamilyError,
    is_recomputing,
)
from keras_remat.replay.scope import scopes

X = floats(4, 6)
EAGER = pytest.mark.modes("loop")


def assert_explains(error, received):
    """The message states a rule, then what was received, then what to do."""
    # Newer Kerases add in which layer it happened.
    text = re.sub(r"\x1b\[\d+m", "", str(error.value))
    text = re.sub(r"(?s)^Exception encountered.*?\n\n|\n\n(Call a|A)rguments.*", "", text)
    rule, _, rest = text.partition("Received: ")
    assert rule.strip().endswith("."), text
    assert re.search(received, rest), text
    assert re.search(r"\. [A-Z`](?s:.*)\.$", rest.strip()), text


@pytest.mark.parametrize("thing", [3, "dense", None, np.tanh, int])
def test_not_a_layer(thing, keras):
    with pytest.raises(UnsupportedFamilyError) as error:
        Recompute(thing)
    assert_explains(error, re.escape(repr(thing)))
    assert isinstance(error.value, (RematError, TypeError))


def test_not_a_layer_in_a_list(keras, L):
    with pytest.raises(UnsupportedFamilyError) as error:
        RecomputeSequential([L.Dense(3), 3])
    assert_explains(error, "3 of type")


def test_layer_of_another_keras(target, L):
    class Layer:  # a base class of that name is how a family is told
        pass

    others = {"keras": "tensorflow.python.keras.engine", "tf_keras": "keras.engine"}
    Layer.__module__ = others.get(target.name, "tf_keras.src.engine") + ".base_layer"
    foreign = type("Foreign", (Layer,), {})()
    with pytest.raises(UnsupportedFamilyError) as error:
        RecomputeSequential([L.Dense(3), foreign])
    assert_explains(error, "Foreign")


def test_no_list(keras, L):
    with pytest.raises(UnsupportedFamilyError) as error:
        RecomputeSequential(L.Dense(3))
    assert_explains(error, "Dense")


def test_empty_list(keras):
    with pytest.raises(RematError) as error:
        RecomputeSequential([])
    assert_explains(error, "an empty list")


@pytest.mark.parametrize("segments", [0, -1, True, "three", 2.5, None])
def test_bad_segments(segments, keras, L):
    with pytest.raises(RematError) as error:
        RecomputeSequential([L.Dense(3)], segments=segments)
    assert_explains(error, "segments=" + re.escape(repr(segments)))


def test_bad_policy(keras, L):
    with pytest.raises(RematError) as error:
        Recompute(L.Dense(3), policy="dots")
    assert_explains(error, "policy='dots'")


@pytest.mark.parametrize("flag", [None, 1, "on"])
def test_bad_switch(flag):
    with pytest.raises(RematError) as error, keras_remat.recompute_enabled(flag):
        pass
    assert_explains(error, re.escape(repr(flag)))


def test_bad_variable(monkeypatch, target, keras, L):
    monkeypatch.setenv("RECOMPUTE", "yes")
    with pytest.raises(RematError) as error:
        Recompute(L.Dense(3))(keras.Input((6,)) if target.is_symbolic else target.tensor(X))
    assert_explains(error, "'yes'")


def train(target, layer, model):
    """Loss, gradients and weights of one step of the model that is the layer, which is undone."""
    weights = target.weights_of(layer)
    before = target.get_values(weights)
    try:
        step = steps.trainer(target, "loop", model).train([X], X, 1)[0]
        return [step.loss, *step.grads, *get_weights(layer)]
    finally:
        target.set_values(list(zip(weights, before)))


def assert_fails_and_recovers(target, layer, failure, fail):
    """`fail(True)` makes a step of `layer` raise `failure`; before and after, all is as it was."""
    # Made before it fails: what a Keras raises while it makes a model is not always what a layer raised.
    model = target.keras.Sequential([layer])
    model.build((None, 6))
    before, weights = train(target, layer, model), get_weights(layer)
    fail(True)
    with pytest.raises(failure) as error:
        train(target, layer, model)
    fail(False)
    assert scopes() == [] and not is_recomputing()
    for pair in zip(weights, get_weights(layer)):
        assert_same("weight", *pair)
    for pair in zip(before, train(target, layer, model)):
        assert_same("number", *pair)
    return error


@EAGER
@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "when", ["first run", pytest.param("second run", marks=pytest.mark.needs("second runs of Python"))]
)
def test_exception_in_a_block(when, failure, mode, target, keras, ops):
    failing = []

    def call(self, inputs):
        outputs = ops.matmul(inputs, self.kernel)
        if failing[-1:] == [True] and is_recomputing() == (when == "second run"):
            raise failure("stop")
        return ops.tanh(outputs)

    layer = Recompute(make_layer(keras, call))
    assert_fails_and_recovers(target, layer, failure, failing.append)


@EAGER
def test_weights_made_in_the_second_run(mode, target, keras, tf, L):
    failing = []

    def call(self, inputs):
        outputs = tf.matmul(inputs, self.kernel)
        if failing[-1:] == [True] and is_recomputing():
            outputs = L.Dense(6)(outputs)
        return outputs

    layer = Recompute(make_layer(keras, call))
    error = assert_fails_and_recovers(target, layer, RecomputeMismatchError, failing.append)
    assert_explains(error, "made '.*kernel")


def other_value(tf, outputs):
    return outputs + 1.0


def other_shape(tf, outputs):
    return outputs[:, :5]


def other_type(tf, outputs):
    return tf.cast(outputs, tf.float64)


def other_random_op(tf, outputs):
    return outputs * tf.random.normal([6])


def more_random_ops(tf, outputs):
    return outputs * tf.random.uniform([6]) * tf.random.uniform([6])


def fewer_random_ops(tf, outputs):
    return outputs


@EAGER
@pytest.mark.parametrize(
    "change, received",
    [
        (other_value, "output 0"),
        (other_shape, r"\[4, 5\]"),
        (other_type, "float64"),
        (other_random_op, "random_normal where"),
        (more_random_ops, "where the first run had nothing"),
        (fewer_random_ops, "nothing"),
    ],
)
def test_second_run_differs(change, received, mode, target, keras, tf):
    failing = []

    def call(self, inputs):
        outputs = tf.matmul(inputs, self.kernel)
        if failing[-1:] == [True] and is_recomputing():
            return change(tf, outputs)
        if failing[-1:] == [True] and change in (
            other_random_op,
            more_random_ops,
            fewer_random_ops,
        ):
            return outputs * tf.random.uniform([6])
        return outputs

    layer = Recompute(make_layer(keras, call))
    error = assert_fails_and_recovers(target, layer, RecomputeMismatchError, failing.append)
    assert_explains(error, received)


def test_exception_while_a_model_is_made(keras, L):
    def call(self, inputs):
        raise ValueError("stop")

    inputs = keras.Input((6,))
    with pytest.raises(Exception, match="stop") as plain:  # Keras 3.3 makes a RuntimeError of it
        make_layer(keras, call)(inputs)
    with pytest.raises(plain.type, match="stop"):
        Recompute(make_layer(keras, call))(inputs)
    assert scopes() == []
    assert tuple(Recompute(L.Dense(3))(inputs).shape)[-1] == 3


def test_all_errors_are_public():
    for name in ("BudgetError", "RecomputeMismatchError", "UnsupportedFamilyError"):
        assert issubclass(getattr(keras_remat, name), RematError)
    assert issubclass(RecomputeMismatchError, RuntimeError)
    assert issubclass(UnsupportedFamilyError, TypeError)
    assert issubclass(keras_remat.BudgetError, ValueError)
