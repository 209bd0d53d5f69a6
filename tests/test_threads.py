"""Two threads train two models at once, or one model, as if each were alone."""

import threading

import numpy as np
import pytest
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute, is_recomputing, recompute_enabled

X = floats(8, 6)


def make_model(keras, L):
    model = keras.Sequential(
        [Recompute(L.Dense(6, activation="tanh")), Recompute(L.BatchNormalization()), L.Dense(2)]
    )
    model.build((None, 6))
    set_weights(model)
    return model


def train(tf, model, steps=20):
    x = tf.constant(X)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        for weight, grad in zip(model.trainable_weights, tape.gradient(loss, model.trainable_weights)):
            weight.assign_sub(0.1 * grad)
    return get_weights(model)


def run_at_once(*functions):
    """Call all functions in threads of their own; return what they gave, or raise."""
    results, errors = {}, []

    def run(number, function):
        try:
            results[number] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(functions))]


@pytest.mark.modes("loop")
def test_two_models(mode, keras, L, tf):
    alone = train(tf, make_model(keras, L))
    models = [make_model(keras, L), make_model(keras, L)]
    for weights in run_at_once(*(lambda m=m: train(tf, m) for m in models)):
        for pair in zip(alone, weights):
            assert_same("weight", *pair)


@pytest.mark.modes("loop")
def test_one_model_that_only_reads(mode, keras, L, tf):
    layer = Recompute(L.Dense(6, activation="tanh"))
    layer.build((None, 6))
    x = tf.constant(X)

    def grads():
        found = []
        for _ in range(20):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x) ** 2)
            found.append([g.numpy() for g in tape.gradient(loss, layer.trainable_weights)])
        return found

    alone = grads()
    for found in run_at_once(grads, grads, grads):
        np.testing.assert_array_equal(
            np.concatenate([g[0] for g in alone]), np.concatenate([g[0] for g in found])
        )


@pytest.mark.modes("loop")
def test_gradient_on_another_thread(mode, keras, L, tf):
    model = make_model(keras, L)
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(model(tf.constant(X), training=True) ** 2)

    def grads():
        return [g.numpy() for g in tape.gradient(loss, model.trainable_weights)]

    here, (there,) = grads(), run_at_once(grads)
    for pair in zip(here, there):
        assert_same("gradient", *pair)


def test_switches_are_per_thread(keras):
    from keras_remat.engine import is_enabled

    with recompute_enabled(False):
        assert run_at_once(is_enabled, is_recomputing) == [True, False]
        assert not is_enabled()
