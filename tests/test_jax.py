"""What only JAX does: traces, which are made once and hold nothing, and several devices in one program."""

import gc
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
from custom import make_layer
from model_proofs import cut
from proofs import assert_same, floats, set_weights

from keras_remat import Recompute, RecomputeSequential, recompute_enabled

pytestmark = [pytest.mark.needs("jax"), pytest.mark.modes("loop")]

X = floats(4, 6)


@pytest.fixture
def jax(mode):
    import jax

    return jax


def make_counting(keras, L, calls):
    """A layer that notes each time its Python runs, where nobody looks for what a trace depends on."""
    notes = types.ModuleType("notes")
    notes.calls = calls

    def call(self, inputs, training=None):
        notes.calls.append(training)
        return self.dropout(keras.ops.tanh(inputs @ self.kernel), training=training) * self.scale

    layer = make_layer(keras, call)
    layer.dropout, layer.scale = L.Dropout(0.3, seed=3), 2.0
    return layer


def gradient_of(jax, model, wrap=lambda f: f):
    """A function of weights and inputs that gives an eager gradient and the new state."""

    def loss(weights, state, x):
        outputs, state = model.stateless_call(weights, state, x, training=True)
        return jax.numpy.mean(outputs**2), state

    def gradient(x=X):
        weights, state = model.trainable_variables, model.non_trainable_variables
        call = wrap(jax.grad(loss, has_aux=True))
        grads, state = call([w.value for w in weights], [s.value for s in state], x)
        return grads

    return gradient


WRAPS = {
    "Recompute": Recompute,
    "RecomputeSequential": lambda layer: RecomputeSequential([layer], segments=1),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_eager_calls_trace_once(wrap, jax, keras, L):
    calls = []
    layer = make_counting(keras, L, calls)
    model = keras.Sequential([keras.Input((6,)), wrap(layer), L.Dense(2)])
    gradient = gradient_of(jax, model)
    gradient()
    del calls[:]
    for _ in range(3):
        gradient()
    assert calls == []
    gradient(floats(2, 6))  # of another shape
    assert calls == [True]


def test_converted_models_trace_once(jax, keras, L):
    calls = []
    layers = [make_counting(keras, L, calls) for _ in range(4)]
    model = cut(keras.Sequential([keras.Input((6,)), *layers, L.Dense(2)]))
    gradient = gradient_of(jax, model)
    gradient()
    del calls[:]
    gradient()
    assert calls == []


CHANGES = {
    "number": lambda layer: setattr(layer, "scale", 3.0),
    "list": lambda layer: layer.sizes.append(1),
    "object": lambda layer: setattr(layer.config, "scale", 3.0),
    "inner layer": lambda layer: setattr(layer.dropout, "rate", 0.9),
    "array": lambda layer: layer.constant.fill(2.0),
}


class Config:
    """A user's own object."""

    scale = 1.0


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_attributes_are_seen(change, jax, keras, L):
    """An eager call uses what a layer is now, not what it was when it was traced."""

    def call(self, inputs):
        factor = self.scale * self.config.scale * len(self.sizes) * self.constant
        return self.dropout(inputs @ self.kernel, training=True) * factor

    results = []
    for wrap in (lambda layer: layer, Recompute):
        layer = make_layer(keras, call)
        layer.scale, layer.config, layer.sizes = 2.0, Config(), [1]
        layer.constant, layer.dropout = np.ones(6, "float32"), L.Dropout(0.3, seed=3)
        model = keras.Sequential([keras.Input((6,)), wrap(layer), L.Dense(2)])
        set_weights(model)
        gradient = gradient_of(jax, model)
        before = gradient()
        change(layer)
        results.append((before, gradient()))
    assert any(np.any(a != b) for a, b in zip(*results[0])), "the change changes nothing"
    for plain, wrapped in zip(*results):
        for one, other in zip(plain, wrapped):
            assert_same("gradient", one, other, 1e-6)


ARRAYS = {"jax": lambda jax, x: jax.numpy.asarray(x), "numpy": lambda jax, x: x}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_arrays_of_earlier_calls_are_let_go(make, jax, keras, L):
    """An attribute that is another array at each step lives for that step."""
    layer = make_layer(keras, lambda self, inputs: keras.ops.tanh(inputs @ self.kernel) * self.constant)
    layer.constant = np.ones((1, 6), "float32")
    model = keras.Sequential([keras.Input((6,)), Recompute(layer), L.Dense(2)])
    gradient, arrays = gradient_of(jax, model), []
    for step in range(4):
        layer.constant = make(jax, np.full((1, 6), step, "float32"))
        arrays.append(weakref.ref(layer.constant))
        gradient()
    gc.collect()
    assert [array() is not None for array in arrays] == [False, False, False, True]


TRANSFORMATIONS = {
    "jit": lambda jax, f: jax.jit(f),
    "checkpoint": lambda jax, f: jax.checkpoint(f),
    "jit in jit": lambda jax, f: jax.jit(jax.jit(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMATIONS.values(), ids=TRANSFORMATIONS)
def test_no_tracer_leaks(transform, jax, keras, L):
    model = cut(keras.Sequential([keras.Input((6,)), make_counting(keras, L, []), L.Dense(2)]))
    expected = gradient_of(jax, model)()
    with jax.checking_leaks():
        for _ in range(2):
            grads = gradient_of(jax, model, lambda f: transform(jax, f))()
    for one, other in zip(expected, grads):
        assert_same("gradient", one, other, 1e-6)


def test_vectorized_gradients(jax, keras, L):
    """Gradients of single samples, by `vmap`, after a trace of the whole batch is kept."""
    results = []
    for convert in (lambda model: model, cut):
        model = keras.Sequential([keras.Input((6,)), L.Dense(6, activation="tanh"), L.Dense(2)])
        set_weights(model)
        model = convert(model)
        gradient_of(jax, model)()
        one = gradient_of(
            jax, model, lambda f: lambda w, s, x: jax.vmap(f, (None, None, 0))(w, s, x[:, None])
        )
        results.append(one())
    for plain, converted in zip(*results):
        assert_same("gradient", plain, converted, 1e-6)


def test_second_derivatives(jax, keras, L):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        model = keras.Sequential([keras.Input((6,)), wrap(L.Dense(6, activation="tanh")), L.Dense(1)])
        set_weights(model)

        def value(x, model=model):
            return jax.numpy.sum(model(x[None]))

        results.append([jax.hessian(value)(X[0]), jax.jvp(jax.grad(value), (X[0],), (X[1],))[1]])
    for plain, wrapped in zip(*results):
        assert_same("derivative", plain, wrapped, 1e-6)


def test_donated_buffers_and_one_compilation(mode, target, keras, L):
    """`fit` donates the buffers of all variables in each of many steps, and compiles once."""
    calls, losses = [], []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        del calls[:]
        model = keras.Sequential([keras.Input((6,)), wrap(make_counting(keras, L, calls)), L.Dense(2)])
        set_weights(model)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        del calls[:]
        options = {"batch_size": 4, "epochs": 20, "shuffle": False, "verbose": 0}
        losses.append(model.fit(floats(8, 6), floats(8, 2, seed=1), **options).history["loss"])
        assert len(calls) <= 2  # a trace for shapes, and one that is compiled
    assert losses[0][-1] < losses[0][0]
    assert_same("losses", *losses, tolerance=1e-5)


def test_switched_off(jax, keras, L):
    model = keras.Sequential([keras.Input((6,)), Recompute(L.Dense(6, activation="tanh"))])

    def primitives():
        weights, state = model.trainable_variables, model.non_trainable_variables
        values = [w.value for w in weights], [s.value for s in state]
        made = jax.make_jaxpr(lambda *v: model.stateless_call(*v, X)[0])(*values)
        return str(made)

    assert "checkpoint" in primitives() or "remat" in primitives()
    with recompute_enabled(False):
        assert "checkpoint" not in primitives() and "remat" not in primitives()


DISTRIBUTIONS = ("data", "model")


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_four_devices(kind, mode):
    flags = "--xla_force_host_platform_device_count=4"
    script = str(Path(__file__).with_name("distributed_jax.py"))
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, script, kind], check=True, env=environment, timeout=300)
