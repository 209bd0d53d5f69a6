"""State: moved once per step, entry values in the second run, generators left as plain code leaves them."""

import random

import numpy as np
import pytest
from custom import make_layer
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute
from keras_remat.backends.tensorflow import recording

X = floats(4, 6)
TRAINING = pytest.mark.modes("loop", "function", "graph", "fit", "fit-eager")
EAGER = pytest.mark.modes("loop")


def add_state(layer, shape=(), initializer="ones"):
    layer.state = layer.add_weight(
        name="state", shape=shape, initializer=initializer, trainable=False, dtype="float32"
    )
    return layer


@TRAINING
def test_read_then_write(prove, keras, tf):
    def call(self, inputs):
        outputs = tf.matmul(inputs, self.kernel) * self.state
        self.state.assign_add(0.5)
        return outputs

    prove(lambda: add_state(make_layer(keras, call)), X)


@pytest.mark.modes("loop", "function", "fit", "fit-eager")
def test_write_then_read(prove, keras, tf):
    def call(self, inputs):
        self.state.assign(self.state * 0.5 + tf.reduce_mean(inputs) + 1.0)
        return tf.matmul(inputs, self.kernel) * self.state

    prove(lambda: add_state(make_layer(keras, call)), X)


@pytest.mark.modes("loop", "function", "fit", "fit-eager", "xla")
def test_power_iteration(prove, keras, tf):
    def call(self, inputs):
        v = tf.nn.l2_normalize(tf.linalg.matvec(self.kernel, self.state, transpose_a=True))
        u = tf.nn.l2_normalize(tf.linalg.matvec(self.kernel, v))
        self.state.assign(tf.stop_gradient(u))
        norm = tf.tensordot(tf.stop_gradient(u), tf.linalg.matvec(self.kernel, v), 1)
        return tf.matmul(inputs, self.kernel / norm)

    prove(lambda: add_state(make_layer(keras, call), (6,)), X)


@pytest.mark.modes("loop", "function")
def test_state_written_twice_in_nested_blocks(prove, keras, tf):
    def call(self, inputs):
        self.state.assign_add(0.5)
        return tf.matmul(inputs, self.kernel) * self.state

    def make():
        outer = make_layer(keras, lambda self, inputs: self.inner(self.inner(inputs)))
        outer.inner = add_state(make_layer(keras, call))
        return outer

    def wrap(outer):
        outer.inner = Recompute(outer.inner)
        return Recompute(outer)

    prove(make, X, wrap=wrap)


@pytest.mark.modes("loop", "function")
def test_variables_of_nobody(prove, keras, tf):
    def make():
        scale, count = tf.Variable(2.0), tf.Variable(1.0, trainable=False)

        def call(self, inputs):
            outputs = tf.matmul(inputs, self.kernel) * scale * count
            count.assign_add(1.0)
            return outputs

        return make_layer(keras, call)

    prove(make, X)


@EAGER
def test_forward_alone_moves_statistics_once(mode, keras, L, tf):
    moved = []
    for wrap in (lambda layer: layer, Recompute):
        model = keras.Sequential([wrap(L.BatchNormalization(momentum=0.7))])
        with tf.GradientTape():
            model(X, training=True)
        moved.append(get_weights(model))
    for plain, wrapped in zip(*moved):
        assert_same("statistics", plain, wrapped)


@EAGER
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
        with tf.GradientTape() as tape, recording():
            loss = tf.reduce_sum(layer(tf.constant(X), training=True) ** 2)
        assert len(layer.trainable_weights) == 4
        grads.append([g.numpy() for g in tape.gradient(loss, layer.trainable_weights)])
        grads[-1] += get_weights(layer)
    for pair in zip(*grads):
        assert_same("gradient or weight", *pair)


WRITES = {
    "assign": lambda tf, v: v.assign(v * 5.0),
    "assign_add": lambda tf, v: v.assign_add(v * 4.0),
    "slice": lambda tf, v: v[2:4].assign([5.0, 5.0]),
    "scatter_update": lambda tf, v: v.scatter_update(tf.IndexedSlices([5.0], [2])),
    "scatter_add": lambda tf, v: v.scatter_add(tf.IndexedSlices([4.0], [2])),
    "scatter_nd_update": lambda tf, v: v.scatter_nd_update([[2]], [5.0]),
    "scatter_nd_add": lambda tf, v: v.scatter_nd_add([[2]], [4.0]),
}


@pytest.mark.modes("loop", "function")
@pytest.mark.parametrize("kind", sorted(WRITES))
def test_every_way_to_write(kind, mode, prove, keras, tf):
    def call(self, inputs):
        outputs = tf.matmul(inputs * self.state, self.kernel)
        WRITES[kind](tf, self.state)
        return outputs

    prove(lambda: make_stateful(keras, call), X)


def make_stateful(keras, call):
    layer = make_layer(keras, call)
    layer.state = layer.add_weight(name="state", shape=(6,), initializer="ones", trainable=False)
    return layer


@EAGER
def test_variables_of_nested_layers_made_by_hand(mode, target, keras, tf):
    """As in the guide of Keras: `tf.Variable` in `build`, with random numbers of its own."""

    class Linear(keras.layers.Layer):
        def build(self, input_shape):
            self.w = tf.Variable(tf.random.normal([int(input_shape[-1]), 3], seed=3), trainable=True)

        def call(self, inputs):
            return tf.matmul(inputs, self.w)

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = Linear()

        def call(self, inputs):
            return tf.tanh(self.inner(inputs))

    grads = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = wrap(Block())
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant(X)) ** 2)
        grads.append([g.numpy() for g in tape.gradient(loss, layer.trainable_weights)])
    assert_same("gradient", *[g for (g,) in grads])


@EAGER
@pytest.mark.needs("devices")
def test_second_run_reads_where_the_variable_lies(mode, keras, tf):
    devices = []

    def call(self, inputs):
        devices.append(self.kernel.handle.device)
        return tf.matmul(inputs, self.kernel)

    layer = make_layer(keras, call)
    with tf.device("CPU:1"):
        layer.build((None, 6))
    block = Recompute(layer)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(tf.constant(X)))
    tape.gradient(loss, layer.trainable_weights)
    assert len(devices) == 2 and set(devices) == {layer.kernel.handle.device}


@EAGER
def test_weights_changed_before_the_gradient(mode, target, keras, L, tf):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        model = keras.Sequential([wrap(L.Dense(6, activation="tanh")), wrap(L.BatchNormalization())])
        model.build((None, 6))
        set_weights(model)
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(model(x, training=True) ** 3)
        for weight in model.weights:
            weight.assign(weight * 3.0)
        results.append([g.numpy() for g in tape.gradient(loss, [x] + model.trainable_weights)])
        results[-1] += get_weights(model)
    for pair in zip(*results):
        assert_same("gradient or weight", *pair)


@EAGER
def test_two_gradients_of_one_tape(mode, target, keras, L, tf):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        model = keras.Sequential([wrap(L.Dense(6, activation="tanh")), wrap(L.BatchNormalization())])
        model.build((None, 6))
        set_weights(model)
        with tf.GradientTape(persistent=True) as tape:
            outputs = model(tf.constant(X), training=True)
            first, second = tf.reduce_sum(outputs**3), tf.reduce_sum(outputs[:, :2] ** 2)
        weights = model.trainable_weights
        found = tape.gradient(first, weights) + tape.gradient(second, weights)
        results.append([g.numpy() for g in found] + get_weights(model))
    for pair in zip(*results):
        assert_same("gradient or weight", *pair)


def draw_all(tf):
    return random.random(), np.random.rand(), float(tf.random.uniform([]))


@EAGER
def test_generators_go_on_as_in_plain_code(mode, target, keras, tf):
    def call(self, inputs):
        noise = tf.random.uniform([6]) + np.random.rand(6).astype("float32") + random.random()
        return tf.matmul(inputs, self.kernel) * noise

    drawn = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = make_layer(keras, call)
        layer.build((None, 6))
        block = wrap(layer)
        target.reset(3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(tf.constant(X)) ** 2)
            after_forward = draw_all(tf)
        tape.gradient(loss, layer.trainable_weights)
        drawn.append(after_forward + draw_all(tf))
    assert drawn[0] == drawn[1]


@EAGER
@pytest.mark.parametrize("draw", ["numpy", "python"])
def test_numbers_drawn_by_python(draw, mode, prove, keras, tf):
    def call(self, inputs):
        keep = np.random.rand() if draw == "numpy" else random.random()
        return tf.matmul(inputs, self.kernel) * float(keep)

    prove(lambda: make_layer(keras, call), X)


@EAGER
@pytest.mark.needs("generators")
def test_generator_of_tensorflow(mode, prove, keras, tf):
    def make():
        generator = tf.random.Generator.from_seed(3)

        def call(self, inputs):
            return tf.matmul(inputs, self.kernel) * generator.normal([4, 6])

        return make_layer(keras, call)

    prove(make, X, predict=False)


@EAGER
def test_masks_differ_from_step_to_step(mode, keras, L, tf):
    layer = Recompute(L.Dropout(0.5))
    x = tf.ones([50, 20])
    grads = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=True)
        grads.append(tape.gradient(outputs, x).numpy())
        np.testing.assert_array_equal(grads[-1], outputs.numpy())  # the mask itself
    assert (grads[0] != grads[1]).any()
