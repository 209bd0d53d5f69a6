"""`recompute_grad` on plain functions of tensors and on methods of anything."""

import inspect

import numpy as np
import pytest
from model_proofs import is_recomputed
from proofs import assert_same, floats, ints

from keras_remat import RematError, is_recomputing, recompute_grad

X = floats(4, 6)
ON = recompute_grad(enabled=True)
EVERY = ("loop", "function", "graph")


def differentiate(target, mode, function, *arrays):
    """Outputs of `function(*tensors)`, and gradients of their sums, in one list of arrays."""
    tf = target.tf

    def outputs_of(tensors):
        return [t for t in tf.nest.flatten(function(*tensors)) if isinstance(t, tf.Tensor)]

    def total(outputs):
        floating = [t for t in outputs if t.dtype.is_floating]
        return tf.add_n([tf.reduce_sum(t * t) for t in floating])

    def run(*tensors):
        wanted = [t for t in tensors if t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(wanted)
            outputs = outputs_of(tensors)
            loss = total(outputs)
        return outputs + tape.gradient(loss, wanted)

    if mode != "graph":
        results = (tf.function(run) if mode == "function" else run)(*map(tf.constant, arrays))
        return [None if r is None else tf.convert_to_tensor(r).numpy() for r in results]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = [tf.constant(a) for a in arrays]
        wanted = [t for t in tensors if t.dtype.is_floating]
        outputs = outputs_of(tensors)
        results = outputs + tf.gradients(total(outputs), wanted)
        found = iter(session.run([tf.convert_to_tensor(r) for r in results if r is not None]))
        return [None if r is None else next(found) for r in results]


def assert_exact(target, mode, function, *arrays, again=True):
    """A decorated function gives the same numbers and gradients, and runs once more for them."""
    runs = []

    def counted(*args, **kwargs):
        runs.append(is_recomputing())
        return function(*args, **kwargs)

    counted.__signature__ = inspect.signature(function)
    expected = differentiate(target, mode, function, *arrays)
    received = differentiate(target, mode, ON(counted), *arrays)
    assert len(expected) == len(received)
    for i, numbers in enumerate(zip(expected, received)):
        assert_same(f"result {i}", *numbers, tolerance=0.0 if mode == "loop" else 1e-6)
    assert runs == ([False, True] if mode == "loop" and again else [False])


FUNCTIONS = {
    "one tensor": (lambda tf, x: tf.tanh(tf.exp(x)), [X]),
    "two tensors": (lambda tf, x, y: tf.tanh(x) * y, [X, floats(4, 6, seed=1)]),
    "two outputs": (lambda tf, x: (tf.tanh(x), tf.exp(x)), [X]),
    "dict": (lambda tf, x: {"b": tf.tanh(x), "a": [tf.exp(x), None, 3]}, [X]),
    "ids": (lambda tf, i, x: tf.tanh(tf.gather(x, i)), [ints(3, high=4), X]),
    "integers out": (lambda tf, x: (tf.tanh(x), tf.argmax(x, -1)), [X]),
    "its input": (lambda tf, x: (x, tf.tanh(x)), [X]),
    "an unread tensor": (lambda tf, x, y: tf.tanh(tf.exp(x)), [X, floats(3)]),
    "a stopped tensor": (lambda tf, x, y: tf.tanh(x) * tf.stop_gradient(y), [X, X]),
}


@pytest.mark.modes(*EVERY)
@pytest.mark.parametrize("case", FUNCTIONS.values(), ids=FUNCTIONS)
def test_function(case, target, mode, tf):
    function, arrays = case
    bound = {
        1: lambda x: function(tf, x),
        2: lambda x, y: function(tf, x, y),
    }[len(arrays)]
    assert_exact(target, mode, bound, *arrays)


CALLS = {
    "keywords": lambda f, x, y: f(x=x, y=y),
    "a keyword": lambda f, x, y: f(x, y=y, flag=False),
    "a flag": lambda f, x, y: f(x, y, True),
    "nothing": lambda f, x, y: f(x, None),
    "structures": lambda f, x, y: f([x, x], {"y": y})[0],
    "the same tensor": lambda f, x, y: f(x, x),
    "further keywords": lambda f, x, y: f(x, y, z=x),
    "in itself": lambda f, x, y: f(f(x, y), y),
}


@pytest.mark.modes(*EVERY)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_arguments(call, target, mode, tf):
    """Tensors get their gradients wherever they are."""

    def function(x, y, flag=None, **kwargs):
        y = 2.0 if y is None else y
        if isinstance(x, list):
            return [tf.tanh(x[0]) * x[1] * y["y"]]
        result = tf.tanh(x) * y + (x if flag else 0.0)
        return tf.sin(result) * sum(kwargs.values(), 1.0)

    arrays = (X, floats(4, 6, seed=1))
    expected = differentiate(target, mode, lambda x, y: call(function, x, y), *arrays)
    received = differentiate(target, mode, lambda x, y: call(ON(function), x, y), *arrays)
    for i, numbers in enumerate(zip(expected, received)):
        assert_same(f"result {i}", *numbers, tolerance=1e-6)


@pytest.mark.modes("loop")
@pytest.mark.needs("symbolic inputs")
def test_symbolic_inputs(target, keras, mode):
    with pytest.raises(RematError, match="takes tensors, not the symbolic inputs of a model. Received: "):
        ON(lambda x: x * 2.0)(keras.Input((6,)))


@pytest.mark.modes("loop")
def test_losses_of_layers_used(target, keras, tf, mode):
    layer = keras.layers.Dense(3, activity_regularizer=keras.regularizers.l2(1.0))
    function = ON(lambda x: layer(x))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(function(tf.constant(X))) + sum(layer.losses)
    before = [float(one) for one in layer.losses]
    tape.gradient(loss, layer.trainable_weights)
    assert [float(one) for one in layer.losses] == before and len(before) == 1


@pytest.mark.modes("loop")
def test_function_inside_one_without_autograph(target, tf, mode):
    @tf.function
    def inner(x):
        return x * 2.0 if tf.reduce_sum(x) > 0.0 else x

    outer = tf.function(ON(lambda x: tf.tanh(inner(x))), autograph=False)
    np.testing.assert_allclose(outer(tf.ones([2])).numpy(), np.tanh([2.0, 2.0]), rtol=1e-6)


@pytest.mark.modes(*EVERY)
def test_methods(target, mode, tf):
    """Methods of anything, decorated in the class or on the object, and static ones."""

    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @ON
        def scaled(self, x):
            return tf.tanh(x * self.factor)

        @staticmethod
        @ON
        def squashed(x):
            return tf.tanh(x)

        def plain(self, x):
            return tf.tanh(x * self.factor)

    scale = Scale(3.0)
    expected = differentiate(target, mode, scale.plain, X)
    for function in (scale.scaled, ON(scale.plain)):
        for numbers in zip(expected, differentiate(target, mode, function, X)):
            assert_same("method", *numbers)
        assert is_recomputed(tf, function)
    for numbers in zip(
        differentiate(target, mode, tf.tanh, X), differentiate(target, mode, scale.squashed, X)
    ):
        assert_same("static method", *numbers)


@pytest.mark.modes(*EVERY)
def test_blocks_in_blocks(target, mode, tf):
    inner = ON(lambda x: tf.tanh(tf.exp(x)))
    expected = differentiate(target, mode, lambda x: tf.sin(tf.tanh(tf.exp(x))), X)
    received = differentiate(target, mode, ON(lambda x: tf.sin(inner(x))), X)
    for numbers in zip(expected, received):
        assert_same("nested", *numbers, tolerance=1e-6)


@pytest.mark.modes("loop", "function")
def test_autograph(target, mode, tf):
    """Python's `if` and `for` on tensors mean what they mean without the decorator."""

    def function(x):
        total = tf.zeros_like(x)
        for i in tf.range(3):
            if tf.reduce_sum(x) * tf.cast(i, x.dtype) > 1.0:
                total += tf.tanh(x)
            else:
                total += tf.exp(-x)
        return total

    arrays = [np.abs(X)], [-np.abs(X)]
    for (x,) in arrays:
        expected = differentiate(target, mode, function, x)
        received = differentiate(target, mode, ON(function), x)
        for numbers in zip(expected, received):
            assert_same("autograph", *numbers, tolerance=1e-6)


@pytest.mark.modes(*EVERY)
def test_errors_of_the_function(target, mode, tf):
    """They come out as they are, and the next call works."""
    fails = [True]

    def function(x):
        if fails:
            raise KeyError("mine")
        return tf.tanh(tf.exp(x))

    with pytest.raises(Exception, match="mine"):
        differentiate(target, mode, ON(function), X)
    del fails[:]
    assert_exact(target, mode, function, X)
