"""`recompute_grad`: on the call of a layer and on functions of tensors."""

import inspect
import itertools
import logging

import pytest
from model_proofs import is_recomputed, prove_model
from proofs import floats, ints

from keras_remat import (
    RematError,
    decorator,
    recompute_enabled,
    recompute_grad,
)

X = floats(4, 6)
ON = recompute_grad(enabled=True)


def plain(call):
    return call


def make_block(kit, decorate):
    """A layer that reads the mask and the training phase; inside its call, it is marked."""
    ops, target, point = kit.ops, kit.target, kit.point()

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
            x = point(ops.tensordot(inputs, self.kernel, 1))
            if mask is not None:
                x *= ops.expand_dims(ops.cast(mask, x.dtype), -1)
            return target.in_train_phase(x + inputs, x - inputs, training)

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


@pytest.mark.parametrize("context", [None, True, False])
@pytest.mark.parametrize("variable", [None, "", "0", "1"])
@pytest.mark.parametrize("enabled", [None, True, False])
def test_switch(enabled, variable, context, target, ops, monkeypatch):
    """The context decides, then a 0 in the environment, then the decorator, then a 1."""
    monkeypatch.delenv("RECOMPUTE", raising=False)
    if variable is not None:
        monkeypatch.setenv("RECOMPUTE", variable)
    if context is None:
        expected = variable != "0" and (variable == "1" if enabled is None else enabled)
    else:
        expected = context
    decorated = recompute_grad(lambda x: ops.tanh(ops.tanh(x)), enabled=enabled)
    if context is None:
        assert is_recomputed(target, decorated) == expected
    else:
        with recompute_enabled(context):
            assert is_recomputed(target, decorated) == expected


def test_it_tells_once_that_it_is_off(target, ops, monkeypatch, caplog):
    monkeypatch.setattr(decorator, "_TOLD", [])
    caplog.set_level(logging.INFO, "keras_remat")
    off = recompute_grad(enabled=False)(lambda x: ops.tanh(x))
    one = recompute_grad(lambda x: ops.tanh(x))
    other = recompute_grad(lambda x: ops.exp(x))
    assert not is_recomputed(target, off)
    assert not [r for r in caplog.records if r.name == "keras_remat"]
    for function in (one, one, other):
        assert not is_recomputed(target, function)
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


@pytest.mark.modes("loop", "function", "fit-eager")
def test_autograph_in_a_layer(target, tf, mode):
    def make(decorate):
        def make_with(kit):
            point = kit.point()

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
