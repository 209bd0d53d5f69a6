"""Gradients of gradients, as in gradient penalties."""

import contextlib
import functools
import inspect

import numpy as np
import pytest
from blocks import make_functional
from custom import make_layer
from proofs import floats, set_weights

from keras_remat import Recompute, RematError, is_recomputing

X = floats(4, 6)


def penalty(target, mode, block, x):
    """The loss with a gradient penalty, and its gradients."""
    if target.tf is None:
        return target.framework.penalty(block, x, mode)

    def step(x):
        return tape_penalty(target.tf, block, x)

    if mode != "loop":
        step = target.tf.function(step, **({"jit_compile": True} if mode == "xla" else {}))
    return [result.numpy() for result in step(target.tf.constant(x))]


def tape_penalty(tf, block, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(tf.sin(block(x, training=True)))
        slope = inner.gradient(loss, x)
        total = loss + tf.reduce_sum(slope * slope)
    return [total] + outer.gradient(total, [x] + list(block.trainable_weights))


BLOCKS = {
    "dense": lambda L: [L.Dense(6, activation="tanh"), L.Dense(3, activation="sigmoid")],
    "norm": lambda L: [L.Dense(6, activation="tanh"), L.LayerNormalization(), L.Dense(3)],
    "dropout": lambda L: [
        L.Dense(6, activation="tanh"),
        L.Dropout(0.5, seed=3),
        L.Dense(3, activation="tanh"),
    ],
    "batch": lambda L: [L.Dense(6, activation="tanh"), L.BatchNormalization(), L.Dense(3, activation="tanh")],
}


@pytest.mark.modes("loop", "function", "xla")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["dense", "norm", "batch"])
def test_gradient_penalty(kind, nested, mode, target, keras, L):
    assert_same_penalties(kind, nested, mode, target, L)


@pytest.mark.modes("loop", "function")
def test_gradient_penalty_with_dropout(mode, target, keras, L):
    assert_same_penalties("dropout", False, mode, target, L)


def note_runs(layer):
    """List, for each run of `layer` from now on, whether it is told to be another one."""
    runs, plain = [], layer.call

    @functools.wraps(plain)
    def call(*args, **kwargs):
        runs.append(is_recomputing())
        return plain(*args, **kwargs)

    call.__signature__ = inspect.signature(plain)
    layer.call = call
    return runs


def assert_same_penalties(kind, nested, mode, target, L):
    keras, results = target.keras, []
    for wrapped in (False, True):
        target.reset()
        layers = BLOCKS[kind](L)
        if wrapped and nested:
            layers = [Recompute(layer) for layer in layers]
        block = keras.Sequential(layers)
        block.build((None, 6))
        set_weights(block)
        runs = note_runs(block.layers[-1])
        block = Recompute(block) if wrapped else block
        with contextlib.ExitStack() if wrapped else target.recording():
            results.append(penalty(target, mode, block, X))
        assert mode != "loop" or not target.has("told runs") or any(runs) == wrapped
    for plain, ours in zip(*results):
        assert np.abs(plain).max() > 0
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=2e-6)


@pytest.mark.modes("graph")
def test_gradient_penalty_of_a_graph(mode, target, keras, tf):
    def call(self, inputs):
        return tf.tanh(tf.matmul(tf.tanh(tf.matmul(inputs, self.kernel)), self.other))

    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        block = wrap(make_layer(keras, call, other=(6, 6)))
        model = make_functional(target, block, [X], lambda layer, x: layer(x), None)
        set_weights(model)

        def gradients(model=model):
            x, outputs = model.inputs[0], model.outputs[0]
            (slope,) = tf.gradients(outputs, [x])
            total = tf.reduce_sum(outputs) + tf.reduce_sum(slope * slope)
            sources = [x] + [getattr(w, "handle", w) for w in model.trainable_weights]
            return keras.backend.function([x], [total] + tf.gradients(total, sources)[:-1])

        results.append(target.symbolic(gradients)()([X]))
    for plain, ours in zip(*results):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=2e-6)


@pytest.mark.modes("loop", "function")
def test_third_derivatives(mode, target, keras, L, ops):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        block = wrap(L.Activation(lambda t: ops.tanh(t) * ops.exp(t) + t**4))
        results.append(derivatives(target, mode, lambda x, block=block: block(x, training=True)))
    np.testing.assert_allclose(*results, rtol=1e-5)


def derivatives(target, mode, function):
    """The function's values, and those of its first three derivatives."""
    x = np.array([0.3, -0.2], "float32")
    if target.tf is None:
        return target.framework.derivatives(function, x, 3)
    tf = target.tf

    def derive(x, order):
        if not order:
            return [function(x)]
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = derive(x, order - 1)
        return found + [tape.gradient(found[-1], x)]

    step = tf.function(derive) if mode == "function" else derive
    return [t.numpy() for t in step(tf.constant(x), 3)]


@pytest.mark.modes("loop")
@pytest.mark.needs("forward mode")
def test_forward_mode(mode, keras, L, tf):
    block, x = Recompute(L.Dense(3)), tf.constant(X)
    block(x)
    with pytest.raises(RematError, match="Received: block 'dense.*' under a tf.autodiff.ForwardAccumulator"):
        with tf.autodiff.ForwardAccumulator(x, x):
            block(x)


@pytest.mark.modes("loop")
@pytest.mark.parametrize("vectorized", [False, True])
def test_jacobian(vectorized, mode, target, keras, L):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = L.Dense(3, activation="tanh", kernel_initializer="ones")
        results.append(jacobian(target, wrap(layer), X[:2] / 3.0, vectorized))
    np.testing.assert_allclose(*results, rtol=1e-6)


def jacobian(target, function, x, vectorized):
    if target.tf is None:
        return target.framework.jacobian(function, x, vectorized)
    x = target.tf.constant(x)
    with target.tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        outputs = function(x)
    return tape.jacobian(outputs, x, experimental_use_pfor=vectorized).numpy()
