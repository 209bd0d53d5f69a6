"""Variables, generators and tapes of TensorFlow itself, with which users go round Keras."""

import pytest
from custom import make_layer
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute

X = floats(4, 6)
EAGER = pytest.mark.modes("loop")


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

    prove(lambda: make_stateful(keras, tf, call), X)


def make_stateful(keras, tf, call):
    layer = make_layer(keras, call)
    layer.state = tf.Variable(tf.ones([6]), trainable=False)
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
        grads += [g.numpy() for g in tape.gradient(loss, tape.watched_variables())]
    assert_same("gradient", *grads)


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


def make_both(target, keras, L):
    """Yield the plain model and the one of blocks, with the same weights."""
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        model = keras.Sequential([wrap(L.Dense(6, activation="tanh")), wrap(L.BatchNormalization())])
        model.build((None, 6))
        set_weights(model)
        yield model


@EAGER
def test_weights_changed_before_the_gradient(mode, target, keras, L, tf):
    results = []
    for model in make_both(target, keras, L):
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
    for model in make_both(target, keras, L):
        with tf.GradientTape(persistent=True) as tape:
            outputs = model(tf.constant(X), training=True)
            first, second = tf.reduce_sum(outputs**3), tf.reduce_sum(outputs[:, :2] ** 2)
        weights = model.trainable_weights
        found = tape.gradient(first, weights) + tape.gradient(second, weights)
        results.append([g.numpy() for g in found] + get_weights(model))
    for pair in zip(*results):
        assert_same("gradient or weight", *pair)


@EAGER
@pytest.mark.needs("generators")
def test_generator_of_tensorflow(mode, prove, keras, tf):
    def make():
        generator = tf.random.Generator.from_seed(3)

        def call(self, inputs):
            return tf.matmul(inputs, self.kernel) * generator.normal([4, 6])

        return make_layer(keras, call)

    prove(make, X, predict=False)
