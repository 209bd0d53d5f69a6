"""`recompute_grad` on plain functions of tensors and on methods of anything."""

import inspect

import numpy as np
import pytest
from model_proofs import is_recomputed
from proofs import assert_same, floats, ints

from keras_remat import RematError, is_recomputing, recompute_grad

X = floats(4, 6) / 2.0  # small: the slope of tanh(exp(x)) multiplies rounding by exp(x)
ON = recompute_grad(enabled=True)
EVERY = ("loop", "function", "graph")


def differentiate(target, mode, function, *arrays):
    """Outputs of `function(*tensors)`, and gradients of their sums, in one list of arrays."""
    if target.tf is None:
        return target.framework.differentiate(function, arrays, mode)
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


def tolerance_of(target, mode):
    return target.tolerance(mode) if mode == "loop" else max(1e-6, target.tolerance(mode))


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
        assert_same(f"result {i}", *numbers, tolerance=tolerance_of(target, mode))
    tells = mode == "loop" and target.has("told runs")
    assert runs == ([False, True] if tells and again else [False])


FUNCTIONS = {
    "one tensor": (lambda ops, x: ops.tanh(ops.exp(x)), [X]),
    "two tensors": (lambda ops, x, y: ops.tanh(x) * y, [X, floats(4, 6, seed=1)]),
    "two outputs": (lambda ops, x: (ops.tanh(x), ops.exp(x)), [X]),
    "dict": (lambda ops, x: {"b": ops.tanh(x), "a": [ops.exp(x), None, 3]}, [X]),
    "ids": (lambda ops, i, x: ops.tanh(ops.take(x, i, axis=0)), [ints(3, high=4), X]),
    "integers out": (lambda ops, x: (ops.tanh(x), ops.argmax(x, -1)), [X]),
    "its input": (lambda ops, x: (x, ops.tanh(x)), [X]),
    "an unread tensor": (lambda ops, x, y: ops.tanh(ops.exp(x)), [X, floats(3)]),
    "a stopped tensor": (lambda ops, x, y: ops.tanh(x) * ops.stop_gradient(y), [X, X]),
}


@pytest.mark.modes(*EVERY)
@pytest.mark.parametrize("case", FUNCTIONS.values(), ids=FUNCTIONS)
def test_function(case, target, mode, ops):
    function, arrays = case
    bound = {
        1: lambda x: function(ops, x),
        2: lambda x, y: function(ops, x, y),
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
def test_arguments(call, target, mode, ops):
    """Tensors get their gradients wherever they are."""

    def function(x, y, flag=None, **kwargs):
        y = 2.0 if y is None else y
        if isinstance(x, list):
            return [ops.tanh(x[0]) * x[1] * y["y"]]
        result = ops.tanh(x) * y + (x if flag else 0.0)
        return ops.sin(result) * sum(kwargs.values(), 1.0)

    arrays = (X, floats(4, 6, seed=1))
    expected = differentiate(target, mode, lambda x, y: call(function, x, y), *arrays)
    received = differentiate(target, mode, lambda x, y: call(ON(function), x, y), *arrays)
    for i, numbers in enumerate(zip(expected, received)):
        assert_same(f"result {i}", *numbers, tolerance=tolerance_of(target, mode))


@pytest.mark.modes("loop")
@pytest.mark.needs("symbolic inputs")
def test_symbolic_inputs(target, keras, mode):
    with pytest.raises(RematError, match="takes tensors, not the symbolic inputs of a model. Received: "):
        ON(lambda x: x * 2.0)(keras.Input((6,)))


class Holder:
    """An object with layers that is none."""

    def __init__(self, *layers):
        self.layers = layers

    @ON
    def run(self, x):
        return self.layers[0](x)


USES = {
    "in a closure": lambda layer: ON(lambda x: layer(x)),
    "of an object": lambda layer: Holder(layer).run,
    "in an object in a closure": lambda layer: (lambda one: ON(lambda x: one.layers[0](x)))(Holder(layer)),
}


@pytest.mark.modes("loop")
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_losses_of_layers_used(use, target, keras, mode):
    layer = keras.layers.Dense(3, activity_regularizer=keras.regularizers.l2(1.0))
    layer(target.tensor(X))

    def with_losses(function):
        return lambda x: [function(x), *layer.losses]

    expected = differentiate(target, mode, with_losses(lambda x: layer(x)), X)
    received = differentiate(target, mode, with_losses(use(layer)), X)
    assert len(expected) == len(received) == 3
    for numbers in zip(expected, received):
        assert_same("outputs, loss, gradient", *numbers, tolerance=target.tolerance(mode))
    if target.has("told runs"):  # a trace of JAX leaves tracers
        assert [float(loss) for loss in layer.losses] == [float(expected[1])]


@pytest.mark.modes("loop")
@pytest.mark.needs("keras 3", "global seed")
def test_random_numbers_of_keras(target, keras, mode):
    function = ON(lambda x: x * keras.random.uniform((4, 6)))
    masks = []
    for _ in range(2):
        outputs, grads = differentiate(target, mode, function, X)
        masks.append(outputs / X)
        assert_same("gradient", 2.0 * outputs * masks[-1], grads, 1e-5)
    assert np.abs(masks[0] - masks[1]).max() > 0.1


@pytest.mark.modes("loop")
def test_function_inside_one_without_autograph(target, tf, mode):
    @tf.function
    def inner(x):
        return x * 2.0 if tf.reduce_sum(x) > 0.0 else x

    outer = tf.function(ON(lambda x: tf.tanh(inner(x))), autograph=False)
    np.testing.assert_allclose(outer(tf.ones([2])).numpy(), np.tanh([2.0, 2.0]), rtol=1e-6)


@pytest.mark.modes(*EVERY)
def test_methods(target, mode, ops):
    """Methods of anything, decorated in the class or on the object, and static ones."""

    class Scale:
        def __init__(self, factor):
            self.factor = factor

        @ON
        def scaled(self, x):
            return ops.tanh(x * self.factor)

        @staticmethod
        @ON
        def squashed(x):
            return ops.tanh(x)

        def plain(self, x):
            return ops.tanh(x * self.factor)

    scale = Scale(3.0)
    expected = differentiate(target, mode, scale.plain, X)
    for function in (scale.scaled, ON(scale.plain)):
        for numbers in zip(expected, differentiate(target, mode, function, X)):
            assert_same("method", *numbers, tolerance=tolerance_of(target, mode))
        assert is_recomputed(target, function)
    for numbers in zip(
        differentiate(target, mode, ops.tanh, X), differentiate(target, mode, scale.squashed, X)
    ):
        assert_same("static method", *numbers, tolerance=tolerance_of(target, mode))


@pytest.mark.modes(*EVERY)
def test_blocks_in_blocks(target, mode, ops):
    inner = ON(lambda x: ops.tanh(ops.exp(x)))
    expected = differentiate(target, mode, lambda x: ops.sin(ops.tanh(ops.exp(x))), X)
    received = differentiate(target, mode, ON(lambda x: ops.sin(inner(x))), X)
    for numbers in zip(expected, received):
        assert_same("nested", *numbers, tolerance=tolerance_of(target, mode))


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
            assert_same("autograph", *numbers, tolerance=tolerance_of(target, mode))


@pytest.mark.modes(*EVERY)
def test_errors_of_the_function(target, mode, ops):
    """They come out as they are, and the next call works."""
    fails = [True]

    def function(x):
        if fails:
            raise KeyError("mine")
        return ops.tanh(ops.exp(x))

    with pytest.raises(Exception, match="mine"):
        differentiate(target, mode, ON(function), X)
    del fails[:]
    assert_exact(target, mode, function, X)
