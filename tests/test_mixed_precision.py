"""Policies of mixed precision, global or of one layer inside a block, and loss scaling."""

import numpy as np
import pytest
from blocks import Prove
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute

pytestmark = pytest.mark.needs("policies")

X = floats(4, 8, 6)
POLICIES = ("mixed_float16", "mixed_bfloat16")


@pytest.fixture
def prove(target, mode):
    """As ever, but fusion of casts may round other than op by op outside of eager mode."""
    proof = Prove(target, mode)
    proof.tolerance = 2e-2 if target.tolerance(mode) else 0.0
    return proof


LAYERS = {
    "dense": lambda L: L.Dense(6, activation="tanh"),
    "conv": lambda L: L.Conv1D(6, 5, padding="same"),
    "norm": lambda L: L.BatchNormalization(momentum=0.7),
    "layer norm": lambda L: L.LayerNormalization(),
    "lstm": lambda L: L.LSTM(4),
    "lstm with dropout": lambda L: L.LSTM(4, dropout=0.4, recurrent_dropout=0.4),
}


@pytest.mark.modes("loop", "function", "fit")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_global_policy(name, policy, mode, target, prove, L):
    with target.policy(policy):
        prove(lambda: LAYERS[name](L), X)


@pytest.mark.modes("loop", "function")
@pytest.mark.parametrize("policy", POLICIES)
def test_policy_of_one_layer(policy, mode, target, prove, keras, L):
    def make():
        mixed = keras.mixed_precision.Policy(policy)
        first, second = (L.Dense(6, activation="tanh", dtype=dtype) for dtype in (None, mixed))
        return keras.Sequential([first, second, L.Dense(6)])

    prove(make, X)


@pytest.mark.needs("keras 2")
@pytest.mark.modes("loop", "function")
def test_loss_scaling(mode, target, keras, L, tf):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        with target.policy("mixed_float16"), target.recording():
            model = keras.Sequential([wrap(L.Dense(6, activation="tanh")), L.Dense(2, dtype="float32")])
            model.build((None, 8, 6))
            set_weights(model)
            optimizer = keras.mixed_precision.LossScaleOptimizer(target.sgd())
            step = make_step(tf, model, optimizer)
            step = step if mode == "loop" else tf.function(step)
            losses = [float(step(tf.constant(X))) for _ in range(3)]
        results.append((losses, [np.array(w) for w in model.get_weights()]))
    tolerance = 0.0 if mode == "loop" else 1e-3
    assert_same("losses", results[0][0], results[1][0], tolerance)
    for pair in zip(results[0][1], results[1][1]):
        assert_same("weight", *pair, tolerance=tolerance)
        assert pair[1].dtype == np.float32


def make_step(tf, model, optimizer):
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - 1.0))
            scaled = optimizer.get_scaled_loss(loss)
        grads = tape.gradient(scaled, model.trainable_weights)
        grads = optimizer.get_unscaled_gradients(grads)
        optimizer.apply_gradients(zip(grads, model.trainable_weights))
        return loss

    return step


@pytest.mark.needs("keras 3")
@pytest.mark.modes("fit", "fit-eager")
@pytest.mark.parametrize("policy", POLICIES)
def test_loss_scaling_in_fit(policy, mode, target, keras, L):
    """Scales that change meanwhile, and a step that is left out since its gradients overflow."""
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        with target.policy(policy), target.recording():
            layers = [L.Dense(6, activation="tanh"), L.BatchNormalization(), L.Dropout(0.4, seed=3)]
            block = keras.Sequential(layers)
            model = keras.Sequential([keras.Input((8, 6)), wrap(block), L.Dense(2, dtype="float32")])
            set_weights(model)
            optimizer = keras.mixed_precision.LossScaleOptimizer(
                target.sgd(), initial_scale=2.0**30, dynamic_growth_steps=2
            )
            model.compile(optimizer, "mse", run_eagerly=mode == "fit-eager")
            y = floats(4, 8, 2, seed=1)
            losses = model.fit(X, y, epochs=24, shuffle=False, verbose=0).history["loss"]
        results.append((losses, get_weights(model), float(*target.get_values([optimizer.dynamic_scale]))))
    assert 0 < results[0][2] == results[1][2]
    tolerance = 2e-2 if target.tolerance(mode) else 0.0
    assert_same("losses", results[0][0], results[1][0], tolerance)
    for pair in zip(results[0][1], results[1][1]):
        assert_same("weight", *pair, tolerance=tolerance)


def test_wrapper_computes_as_its_layer(target, keras, L):
    with target.policy("mixed_float16"):
        inputs = keras.Input((6,))
        layer = L.Dense(3)
        outputs = Recompute(layer)(inputs)
    assert outputs.dtype == "float16"
    assert all("float32" in str(weight.dtype) for weight in layer.weights)
