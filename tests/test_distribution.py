"""MirroredStrategy over the two halves of the processor: the same as the plain model under it."""

import functools
import inspect

import pytest
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute
from keras_remat.backends.tensorflow import recording

pytestmark = [pytest.mark.needs("devices"), pytest.mark.modes("fit")]

X, Y = floats(8, 6), floats(8, 2, seed=1)


def record(layer):
    """Let a plain layer draw the masks of a block; replicas run in threads of their own."""
    original = layer.call

    @functools.wraps(original)
    def call(*args, **kwargs):
        with recording():
            return original(*args, **kwargs)

    call.__signature__ = inspect.signature(original)
    layer.call = call
    return layer


def dense(L, l2):
    return [L.Dense(6, activation="tanh", activity_regularizer=l2, kernel_regularizer=l2)]


def norm(L, l2):
    return [L.Dense(6, activation="tanh"), L.BatchNormalization(momentum=0.7)]


def dropout(L, l2):
    return [L.Dense(6, activation="tanh", activity_regularizer=l2), L.Dropout(0.5, seed=3)]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("make", [dense, norm, dropout])
def test_fit(make, grouped, mode, target, keras, L, tf):
    results = []
    for wrap in (record, Recompute):
        target.reset()
        # Without collective ops: their keys clash between the strategies of one process.
        reduction = tf.distribute.ReductionToOneDevice()
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=reduction)
        assert strategy.num_replicas_in_sync == 2
        with strategy.scope():
            layers = make(L, keras.regularizers.l2(0.1))
            blocks = [wrap(keras.Sequential(layers))] if grouped else list(map(wrap, layers))
            model = keras.Sequential([L.Activation("linear", input_shape=(6,))] + blocks + [L.Dense(2)])
            set_weights(model)
            model.compile(target.sgd(), "mse")
        history = model.fit(X, Y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        results.append(history.history["loss"] + get_weights(model))
    for pair in zip(*results):
        assert_same("loss or weight", *pair, tolerance=1e-6)
