"""Every way of training a model, with blocks that are random, that have state, or both.

Each proof is a test of its own here, so that the mutation check can tell them apart.
"""

import numpy as np
import pytest
from custom import make_layer
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute


def dense_block(L):
    return L.Dense(6, activation="tanh")


def norm_block(L):
    return L.BatchNormalization(momentum=0.7)


def test_same_numbers(prove, L):
    prove(lambda: dense_block(L), floats(4, 6), again=False, less=False)


def test_ran_again(prove, L):
    prove(lambda: dense_block(L), floats(4, 6), same=False, less=False)


# With `run_eagerly`, nothing of ours runs between the forward pass and the gradient.
@pytest.mark.modes("loop", "function", "fit", "xla", "graph")
def test_keeps_less(prove, L):
    prove(lambda: dense_block(L), floats(4, 6), same=False, again=False)


# XLA's random numbers are new ones in every run.
@pytest.mark.modes("loop", "function", "fit", "fit-eager", "graph")
def test_same_masks(prove, keras, ops):
    def call(self, inputs, training=None):
        return self.dropout(ops.matmul(inputs, self.kernel), training=training)

    def make():
        layer = make_layer(keras, call)
        layer.dropout = keras.layers.Dropout(0.5, seed=3)
        return layer

    prove(make, floats(4, 6), again=False, less=False)


def test_same_statistics(prove, L):
    prove(lambda: norm_block(L), floats(4, 6))


# In graphs no variable is read a second time, so there is no state to forget.
@pytest.mark.modes("loop", "fit-eager")
def test_same_state_eagerly(prove, keras, ops):
    def call(self, inputs):
        self.count.assign_add(1.0)
        return ops.matmul(inputs, self.kernel) * self.count

    def make():
        layer = make_layer(keras, call)
        layer.count = layer.add_weight(
            name="count", shape=(), initializer="zeros", trainable=False, dtype="float32"
        )
        return layer

    prove(make, floats(4, 6), again=False, less=False)


@pytest.mark.modes("function")
def test_inference_in_a_function(mode, keras, L, tf):
    model = keras.Sequential([Recompute(L.Dense(6, activation="tanh"))])
    x = tf.constant(floats(4, 6))
    expected = model(x, training=False).numpy()
    predict = tf.function(lambda x: model(x, training=False)).get_concrete_function(x)
    np.testing.assert_allclose(predict(x), expected, rtol=1e-6)
    assert "IdentityN" not in {op.type for op in predict.graph.get_operations()}


@pytest.mark.modes("loop", "function")
def test_gradients_in_inference_mode(prove, keras, L):
    """A tape decides, not `training`: adapters are trained on a base that is called for inference."""

    def call(block, x):
        return block(x, training=False)

    prove(lambda: L.BatchNormalization(), floats(4, 6), call=call, subclass=True)


@pytest.mark.needs("compiled fit")
@pytest.mark.modes("xla")
def test_fit_compiled_by_xla(mode, target, keras, L):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layers = [L.Dense(6, activation="tanh", input_shape=(6,)), L.BatchNormalization()]
        model = keras.Sequential([wrap(keras.Sequential(layers)), L.Dense(2)])
        model.build((None, 6))
        set_weights(model)
        model.compile(target.sgd(), "mse", jit_compile=True)
        history = model.fit(floats(4, 6), floats(4, 2, seed=1), epochs=3, shuffle=False, verbose=0)
        results.append(history.history["loss"] + get_weights(model))
    for plain, wrapped in zip(*results):
        assert_same("loss or weight", plain, wrapped, 1e-5)
