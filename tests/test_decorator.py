"""`recompute_grad`: on the call of a layer and on functions of tensors."""

import inspect
import itertools
import logging

import numpy as np
import pytest
from models import COPY, prove_model
from proofs import assert_same, floats, ints

from keras_remat import (
    RematError,
    decorator,
    is_recomputing,
    recompute_enabled,
    recompute_grad,
)

X = floats(4, 6)
ON = recompute_grad(enabled=True)
EVERY = ("loop", "function", "graph")


def plain(call):
    return call


def make_block(kit, decorate):
    """A layer that reads the mask and the training phase; inside its call, it is marked."""
    tf, backend, point = kit.tf, kit.keras.backend, kit.point()

    class Block(kit.keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.supports_masking = True

        def build(self, input_shape):
            size = int(input_shape[-1])
            self.kernel = self.add_weight(name="kernel", shape=(size, size), initializer="glorot_uniform")
            super().build(input_shape)

        @decorate
        def call(self, inputs, mask=None, training=None):
            """Multiply."""
            x = point(tf.tensordot(inputs, self.kernel, 1))
            if mask is not None:
                x *= tf.expand_dims(tf.cast(mask, x.dtype), -1)
            return backend.in_train_phase(x + inputs, x - inputs, training=training)

        def compute_output_shape(self, input_shape):
            return input_shape

    return Block


def make_model(decorate, masked=False):
    """Makes models with two of them."""

    def make(kit):
        layers = kit.keras.layers
        inputs = kit.Input((5,), dtype="int32")
        x = layers.Embedding(10, 6, mask_zero=masked)(inputs)
        for _ in range(2):
            x = make_block(kit, decorate)()(x)
        return kit.Model(inputs, layers.Dense(2)(layers.SimpleRNN(3)(x)))

    return make


IDS = ints(4, 5, high=4)
PLAIN, PLAIN_MASKED = make_model(plain), make_model(plain, masked=True)


def no_change(model):
    pass


@pytest.mark.modes("loop", "function", "fit", "fit-eager", "graph")
def test_layer(target, mode):
    prove_model(target, mode, PLAIN, (IDS,), no_change, make_other=make_model(ON))


@pytest.mark.modes("loop", "function", "graph")
def test_mask(target, mode):
    """Keras passes the mask only to a call in whose signature it finds `mask`."""
    other = make_model(ON, masked=True)
    masked = prove_model(target, mode, PLAIN_MASKED, (IDS,), no_change, make_other=other)
    unmasked = prove_model(target, mode, PLAIN, (IDS,), no_change, make_other=PLAIN, again=0)
    assert masked.result.steps[0].loss != unmasked.result.steps[0].loss


@pytest.mark.modes("loop", "function", "graph")
def test_bare(target, mode):
    """Nothing is recomputed unless it is switched on."""
    bare = make_model(recompute_grad)
    prove_model(target, mode, PLAIN, (IDS,), no_change, make_other=bare, again=0)
    with recompute_enabled(True):
        prove_model(target, mode, PLAIN, (IDS,), no_change, make_other=bare)


def is_recomputed(tf, function):
    """True if a gradient of `function` in a graph runs it again."""
    with tf.Graph().as_default() as graph:
        x = tf.ones((2, 3))
        tf.gradients(function(x), x)
        return any(COPY.match(op.name) for op in graph.get_operations())


@pytest.mark.parametrize("context", [None, True, False])
@pytest.mark.parametrize("variable", [None, "", "0", "1"])
@pytest.mark.parametrize("enabled", [None, True, False])
def test_switch(enabled, variable, context, tf, monkeypatch):
    """The context decides, then a 0 in the environment, then the decorator, then a 1."""
    monkeypatch.delenv("RECOMPUTE", raising=False)
    if variable is not None:
        monkeypatch.setenv("RECOMPUTE", variable)
    if context is None:
        expected = variable != "0" and (variable == "1" if enabled is None else enabled)
    else:
        expected = context
    decorated = recompute_grad(lambda x: tf.tanh(tf.tanh(x)), enabled=enabled)
    if context is None:
        assert is_recomputed(tf, decorated) == expected
    else:
        with recompute_enabled(context):
            assert is_recomputed(tf, decorated) == expected


def test_it_tells_once_that_it_is_off(tf, monkeypatch, caplog):
    monkeypatch.setattr(decorator, "_TOLD", [])
    caplog.set_level(logging.INFO, "keras_remat")
    off = recompute_grad(enabled=False)(lambda x: tf.tanh(x))
    one = recompute_grad(lambda x: tf.tanh(x))
    other = recompute_grad(lambda x: tf.exp(x))
    assert not is_recomputed(tf, off)
    assert not [r for r in caplog.records if r.name == "keras_remat"]
    for function in (one, one, other):
        assert not is_recomputed(tf, function)
    (record,) = [r for r in caplog.records if r.name == "keras_remat"]
    assert record.levelno == logging.INFO
    assert "RECOMPUTE=1" in record.getMessage()


@pytest.mark.parametrize("decorate", [recompute_grad, recompute_grad(), ON])
def test_signature(decorate):
    def call(self, inputs, mask=None, *args, training=None, **kwargs):
        """Words."""

    decorated = decorate(call)
    assert inspect.signature(decorated) == inspect.signature(call)
    assert (decorated.__name__, decorated.__doc__) == ("call", "Words.")
    assert decorated.__wrapped__ is call


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


@pytest.mark.modes("loop", "function", "fit-eager")
def test_autograph_in_a_layer(target, mode):
    def make(decorate):
        def make_with(kit):
            tf, point = kit.tf, kit.point()

            class Branch(kit.keras.layers.Layer):
                @decorate
                def call(self, inputs):
                    if tf.reduce_sum(inputs) > 0.0:
                        x = tf.tanh(inputs)
                    else:
                        x = tf.exp(-inputs)
                    return point(x)

                def compute_output_shape(self, input_shape):
                    return input_shape

            layers = kit.keras.layers
            inputs = kit.Input((6,))
            x = Branch()(layers.Dense(5)(inputs))
            return kit.Model(inputs, layers.Dense(2)(x))

        return make_with

    prove_model(target, mode, make(plain), (X,), no_change, make_other=make(ON))


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


def test_wrong_use(keras, monkeypatch):
    for wrong in (3, "call", keras.layers.Dense, keras.layers.Dense(2)):
        with pytest.raises(RematError, match="decorates a function.*Received: .*Recompute"):
            recompute_grad(wrong)
    for wrong in ("yes", 2, [], "auto"):
        with pytest.raises(RematError, match="`enabled` must be.*Received: enabled="):
            recompute_grad(enabled=wrong)
    monkeypatch.setenv("RECOMPUTE", "maybe")
    with pytest.raises(RematError, match="RECOMPUTE must be 0 or 1. Received: 'maybe'"):
        recompute_grad(lambda x: x)(1)


def test_all_combinations_of_options():
    """Bare and with options, in every order."""
    for options in itertools.chain([{}], ({"enabled": e} for e in (None, True, False))):
        assert recompute_grad(**options)(len)([1]) == recompute_grad(len, **options)([1]) == 1
