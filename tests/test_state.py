"""State: moved once per step, entry values in the second run, generators left as plain code leaves them."""

import random

import numpy as np
import pytest
import steps
from custom import make_layer, make_random_layer
from proofs import assert_same, floats, get_weights

from keras_remat import Recompute

X = floats(4, 6)
TRAINING = pytest.mark.modes("loop", "function", "graph", "fit", "fit-eager")
EAGER = pytest.mark.modes("loop")


def add_state(layer, shape=(), initializer="ones"):
    layer.state = layer.add_weight(
        name="state", shape=shape, initializer=initializer, trainable=False, dtype="float32"
    )
    layer.reads_copy = False
    return layer


def read(layer):
    return layer.state + 0.0 if layer.reads_copy else layer.state


def reading_copies(layer):
    """Let a plain layer read copies: PyTorch differentiates nothing that read what was written since."""
    layer.reads_copy = True
    return layer


@TRAINING
def test_read_then_write(prove, keras, ops):
    def call(self, inputs):
        outputs = ops.matmul(inputs, self.kernel) * read(self)
        self.state.assign_add(0.5)
        return outputs

    prove(lambda: add_state(make_layer(keras, call)), X, plain=reading_copies)


@pytest.mark.modes("loop", "function", "fit", "fit-eager")
def test_write_then_read(prove, keras, ops):
    def call(self, inputs):
        self.state.assign(self.state * 0.5 + ops.mean(inputs) + 1.0)
        return ops.matmul(inputs, self.kernel) * self.state

    prove(lambda: add_state(make_layer(keras, call)), X)


@pytest.mark.modes("loop", "function", "fit", "fit-eager", "xla")
def test_power_iteration(prove, keras, ops):
    def normalized(x):
        return x / ops.sqrt(ops.sum(ops.square(x)))

    def call(self, inputs):
        v = normalized(ops.matmul(read(self), self.kernel))
        u = normalized(ops.matmul(v, ops.transpose(self.kernel)))
        self.state.assign(ops.stop_gradient(u))
        norm = ops.sum(ops.matmul(ops.stop_gradient(u), self.kernel) * v)
        return ops.matmul(inputs, self.kernel / norm)

    prove(lambda: add_state(make_layer(keras, call), (1, 6)), X, plain=reading_copies)


@pytest.mark.modes("loop", "function")
def test_state_written_twice_in_nested_blocks(prove, keras, ops):
    def call(self, inputs):
        self.state.assign_add(0.5)
        return ops.matmul(inputs, self.kernel) * read(self)

    def make():
        outer = make_layer(keras, lambda self, inputs: self.inner(self.inner(inputs)))
        outer.inner = add_state(make_layer(keras, call))
        return outer

    def wrap(outer):
        outer.inner = Recompute(outer.inner)
        return Recompute(outer)

    def plain(outer):
        reading_copies(outer.inner)
        return outer

    prove(make, X, wrap=wrap, plain=plain)


@EAGER
def test_forward_alone_moves_statistics_once(mode, target, keras, L):
    """Whether or not a gradient follows."""
    moved = []
    for wrap in (lambda layer: layer, Recompute):
        model = keras.Sequential([wrap(L.BatchNormalization(momentum=0.7))])
        model.build((None, 6))

        with pytest.raises(Stop):
            steps.trainer(target, mode, model, before_gradient=stop).train([X], X, 1)
        moved.append(get_weights(model))
    for plain, wrapped in zip(*moved):
        assert_same("statistics", plain, wrapped)


class Stop(Exception):
    """Ends a step before its gradient."""


def stop():
    raise Stop


@EAGER
@pytest.mark.needs("keras 2")  # Keras 3 wants all state to be made in `build`
def test_weights_made_in_the_first_call(mode, target, keras, L, tf):
    class Lazy(keras.layers.Layer):
        def call(self, inputs, training=None):
            if not hasattr(self, "norm"):
                self.norm = L.BatchNormalization()
                self.dense = L.Dense(6, activation="tanh", kernel_initializer="ones")
                self.dropout = L.Dropout(0.5, seed=3)
            return self.dropout(self.dense(self.norm(inputs)), training=training)

    grads = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = wrap(Lazy())
        with tf.GradientTape() as tape, target.recording():
            loss = tf.reduce_sum(layer(tf.constant(X), training=True) ** 2)
        assert len(layer.trainable_weights) == 4
        grads.append([g.numpy() for g in tape.gradient(loss, layer.trainable_weights)])
        grads[-1] += get_weights(layer)
    for pair in zip(*grads):
        assert_same("gradient or weight", *pair)


def draw_all(target):
    drawn = target.keras.random.uniform([]) if target.is_keras3 else target.tf.random.uniform([])
    return random.random(), np.random.rand(), float(drawn)


@EAGER
@pytest.mark.needs("global seed")
def test_generators_go_on_as_in_plain_code(mode, target, keras, ops):
    def call(self, inputs):
        noise = self.uniform([6]) + np.random.rand(6).astype("float32") + random.random()
        return ops.matmul(inputs, self.kernel) * noise

    drawn = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        model = keras.Sequential([wrap(make_random_layer(target, call))])
        model.build((None, 6))
        target.reset(3)
        drawn.append([])
        trainer = steps.trainer(
            target, mode, model, before_gradient=lambda: drawn[-1].extend(draw_all(target))
        )
        trainer.train([X], X, 1)
        drawn[-1] += draw_all(target)
    assert len(drawn[0]) == 6 and drawn[0] == drawn[1]


@EAGER
@pytest.mark.parametrize("draw", ["numpy", "python"])
def test_numbers_drawn_by_python(draw, mode, prove, keras, ops):
    def call(self, inputs):
        keep = np.random.rand() if draw == "numpy" else random.random()
        return ops.matmul(inputs, self.kernel) * float(keep)

    prove(lambda: make_layer(keras, call), X)


@EAGER
def test_masks_differ_from_step_to_step(mode, target, keras, L):
    """The gradient of the inputs shows the mask of the second run, that of the kernel the first one's."""
    model = keras.Sequential([Recompute(L.Dropout(0.5)), L.Dense(2)])
    model.build((None, 200))
    trainer, masks = steps.trainer(target, mode, model), []
    for _ in range(2):
        inputs, kernel, _ = trainer.train([np.ones((1, 200), "float32")], floats(1, 2), 1)[0].grads
        masks.append(inputs[0] != 0.0)
        np.testing.assert_array_equal(masks[-1], kernel.any(axis=1))
    assert masks[0].any() and not masks[0].all() and (masks[0] != masks[1]).any()
