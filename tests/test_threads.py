"""Two threads train two models at once, or one model, as if each were alone."""

import threading

import numpy as np
import pytest
import steps
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute, is_recomputing, recompute_enabled

X, Y = floats(8, 6), floats(8, 2, seed=1)


def make_model(keras, L):
    model = keras.Sequential(
        [Recompute(L.Dense(6, activation="tanh")), Recompute(L.BatchNormalization()), L.Dense(2)]
    )
    model.build((None, 6))
    set_weights(model)
    return model


def train(target, model, count=20):
    steps.trainer(target, "loop", model).train([X], Y, count)
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
def test_two_models(mode, target, keras, L):
    alone = train(target, make_model(keras, L))
    models = [make_model(keras, L), make_model(keras, L)]
    for weights in run_at_once(*(lambda m=m: train(target, m) for m in models)):
        for pair in zip(alone, weights):
            assert_same("weight", *pair)


@pytest.mark.modes("loop")
def test_one_model_that_only_reads(mode, target, keras, L):
    layer = Recompute(L.Dense(2, activation="tanh"))
    layer.build((None, 6))
    set_weights(layer)
    layer.layer.trainable = False  # a step would write the weights

    # Made here: up to 2.1 Keras makes all models in one graph, which is not safe for threads.
    models = [keras.Sequential([keras.Input((6,)), layer]) for _ in range(4)]

    def grads(model):
        taken = steps.trainer(target, mode, model).train([X], Y, 20)
        return np.concatenate([step.grads[0] for step in taken])

    alone = grads(models.pop())
    assert alone.any()
    for found in run_at_once(*(lambda m=m: grads(m) for m in models)):
        np.testing.assert_array_equal(alone, found)


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


@pytest.mark.needs("torch")
@pytest.mark.modes("loop")
def test_backward_on_another_thread(mode, target, keras, L):
    model = make_model(keras, L)
    loss = (model(target.tensor(X), training=True) ** 2).mean()

    def grads():
        model.zero_grad()
        loss.backward(retain_graph=True)
        return [w.value.grad.numpy().copy() for w in model.trainable_weights]

    here, (there,) = grads(), run_at_once(grads)
    assert any(g.any() for g in here)
    for pair in zip(here, there):
        assert_same("gradient", *pair)


def test_switches_are_per_thread(keras):
    from keras_remat.engine import is_enabled

    with recompute_enabled(False):
        assert run_at_once(is_enabled, is_recomputing) == [True, False]
        assert not is_enabled()
