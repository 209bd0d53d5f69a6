"""Blocks with conditions, loops and functions in them, with random numbers inside them."""

import numpy as np
import pytest
from custom import make_layer, make_random_layer
from proofs import floats

from keras_remat import Recompute, RematError, recompute_grad

pytestmark = pytest.mark.modes("loop", "function", "graph")

X = floats(4, 6)


def noise(tf, tensor, seed):
    return tensor * tf.random.uniform(tf.shape(tensor), seed=seed)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_condition(sign, prove, keras, tf):
    def call(self, inputs):
        return tf.cond(
            sign * tf.reduce_sum(inputs * inputs) > 0.0,
            lambda: noise(tf, tf.matmul(inputs, self.kernel), 3),
            lambda: tf.tanh(tf.matmul(inputs, self.other)),
        )

    prove(lambda: make_layer(keras, call, other=(6, 6)), X, predict=False)


def test_loop(prove, keras, tf):
    def call(self, inputs):
        def body(i, hidden):
            return i + 1, noise(tf, tf.tanh(tf.matmul(hidden, self.kernel)), 3)

        return tf.while_loop(lambda i, hidden: i < 3, body, [tf.constant(0), inputs])[1]

    prove(lambda: make_layer(keras, call), X, predict=False)


def test_loop_without_randomness(prove, keras, tf):
    def call(self, inputs):
        def body(i, hidden):
            return i + 1, tf.tanh(tf.matmul(hidden, self.kernel))

        return tf.while_loop(lambda i, hidden: i < 3, body, [tf.constant(0), inputs])[1]

    prove(lambda: make_layer(keras, call), X)


@pytest.mark.modes("function")
@pytest.mark.parametrize("write", ["slice", "scatter_nd_add"])
def test_write_after_read_in_a_loop(write, mode, keras, tf):
    state = tf.Variable([0.0], trainable=False)

    def body(i, hidden):
        hidden = hidden * (1.0 + state[0])
        if write == "slice":
            state[0:1].assign([1.0])
        else:
            state.scatter_nd_add([[0]], [1.0])
        return i + 1, hidden

    def call(self, inputs):
        return tf.while_loop(lambda i, hidden: i < 3, body, [tf.constant(0), inputs])[1]

    block = Recompute(make_layer(keras, call, size=None))
    with pytest.raises(RematError, match="reads in tf.while_loop"):
        tf.function(lambda x: block(x, training=True))(tf.constant(X))


@pytest.mark.modes("loop", "function", "fit")
def test_tape_inside(prove, keras, tf):
    """A layer whose output is a gradient, as in models of energies."""

    def call(self, inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            energy = tf.reduce_sum(tf.tanh(tf.matmul(inputs, self.kernel)) ** 2)
        return inputs - tape.gradient(energy, inputs)

    prove(lambda: make_layer(keras, call), X, less=False)


@pytest.mark.modes("loop")
def test_candidates_drawn(prove, keras, tf):
    labels = tf.constant([[1], [2], [3], [0]], "int64")

    def call(self, inputs):
        loss = tf.nn.sampled_softmax_loss(self.kernel, self.bias, labels, inputs, 3, 6, seed=3)
        return inputs * loss[:, tf.newaxis]

    prove(lambda: make_layer(keras, call, bias=(6,)), X, predict=False)


def make_caller(keras, call):
    """Makes a layer that holds another one and calls it by `call(layer, inputs)`."""

    base = getattr(keras.layers, "Wrapper", None) or keras.layers.wrappers.Wrapper  # of Keras 2.3.1

    class Caller(base):
        def build(self, input_shape=None):
            if not self.layer.built:
                self.layer.build(input_shape)
                self.layer.built = True
            super().build(input_shape)

        def call(self, inputs):
            return call(self.layer, inputs)

        def compute_output_shape(self, input_shape):
            return input_shape

    return Caller


@pytest.mark.parametrize("kind", ["loop", "branch"])
def test_block_in_a_loop_or_branch(kind, prove, keras, tf, L):
    def loop(layer, inputs):
        return tf.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, layer.call(x)), [tf.constant(0), inputs]
        )[1]

    def branch(layer, inputs):
        return tf.cond(tf.reduce_sum(inputs * inputs) > 0.0, lambda: layer.call(inputs), lambda: inputs)

    caller = make_caller(keras, {"loop": loop, "branch": branch}[kind])
    # As functions, a loop or branch and its gradient are graphs of their own: their ops are not counted.
    in_one_graph = prove.mode == "loop" or not prove.target.has("functions for loops")
    prove(
        lambda: L.Dense(6, activation="tanh"),
        X,
        wrap=lambda layer: caller(Recompute(layer)),
        plain=caller,
        again=in_one_graph,
        less=in_one_graph,
    )


@pytest.mark.modes("loop", "function")
def test_python_conditions_and_loops(prove, keras, tf):
    def call(self, inputs):
        hidden = inputs
        for _ in tf.range(3):
            hidden = noise(tf, tf.tanh(tf.matmul(hidden, self.kernel)), 3)
        if tf.reduce_sum(hidden) > 1e9:
            hidden = hidden * 2.0
        return hidden

    prove(lambda: make_layer(keras, call), X, predict=False)


@pytest.mark.modes("loop", "function")
def test_decorated_call(prove, keras, tf):
    @tf.function
    def call(self, inputs):
        outputs = noise(tf, tf.matmul(inputs, self.kernel), 3)
        if tf.reduce_sum(outputs) > 1e9:
            outputs = outputs * 2.0
        return outputs

    prove(lambda: make_layer(keras, call), X, predict=False)


@pytest.mark.modes("loop", "function")
def test_function_inside(prove, keras, tf):
    @tf.function
    def inner(tensor, kernel):
        return tf.tanh(tf.matmul(noise(tf, tensor, 3), kernel))

    def call(self, inputs):
        kernel = tf.convert_to_tensor(self.kernel)  # variables of Keras 3 are no arguments of a function
        return inner(inner(inputs, kernel), kernel)

    prove(lambda: make_layer(keras, call), X, predict=False)


@pytest.mark.needs("compiled functions")
@pytest.mark.modes("loop", "function")
def test_a_compiled_function_draws_once(mode, tf):
    @tf.function(jit_compile=True)
    def drop(tensor):
        return tf.nn.dropout(tf.tanh(tensor), 0.5)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = recompute_grad(drop, enabled=True)(x)
        return y, tape.gradient(y, x)

    x = tf.constant(floats(20, 20))
    y, grad = (tf.function(step) if mode == "function" else step)(x)
    dropped = y.numpy() == 0
    assert 100 < dropped.sum() < 300
    np.testing.assert_array_equal(grad.numpy() == 0, dropped)


@pytest.mark.modes("loop", "function")
def test_custom_gradient(prove, keras, tf):
    @tf.custom_gradient
    def scaled(tensor):
        return tf.tanh(tensor), lambda grad: grad * 0.5

    def call(self, inputs):
        return scaled(tf.matmul(inputs, self.kernel))

    prove(lambda: make_layer(keras, call), X)


KINDS = {
    "normal": lambda tf, shape: tf.random.normal(shape, seed=3),
    "truncated": lambda tf, shape: tf.random.truncated_normal(shape, seed=3),
    "ints": lambda tf, shape: tf.cast(tf.random.uniform(shape, 0, 9, tf.int32, 3), tf.float32),
    "gamma": lambda tf, shape: tf.random.gamma([], tf.fill(shape, 2.0), seed=3),
    "shuffle": lambda tf, shape: tf.random.shuffle(tf.reshape(tf.range(24.0), shape), seed=3),
    "categorical": lambda tf, shape: tf.cast(tf.random.categorical(tf.zeros([4, 5]), 6, seed=3), tf.float32),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_random_numbers(kind, prove, keras, tf):
    def call(self, inputs):
        return tf.tanh(tf.matmul(inputs, self.kernel)) * KINDS[kind](tf, [4, 6])

    prove(lambda: make_layer(keras, call), X, predict=False)


def test_draws_in_a_loop_of_python(prove, target, ops):
    def call(self, inputs):
        for _ in range(3):
            inputs = ops.tanh(ops.matmul(inputs, self.kernel)) * self.uniform([6])
        return inputs

    prove(lambda: make_random_layer(target, call), X, predict=False)


CONSTRUCTS = {
    "cond": lambda ops, x: ops.cond(ops.sum(x) > 0.0, lambda: ops.tanh(x), lambda: x * ops.sigmoid(x)),
    "scan": lambda ops, x: ops.scan(lambda h, row: (ops.tanh(h + row), h * row), x[0], x)[1],
    "fori_loop": lambda ops, x: ops.fori_loop(0, 3, lambda i, h: ops.tanh(h * 2.0), x),
    "vectorized_map": lambda ops, x: ops.vectorized_map(lambda row: ops.tanh(row) * ops.sum(row), x),
}


@pytest.mark.needs("keras 3")
@pytest.mark.parametrize("kind", CONSTRUCTS)
def test_control_flow_of_keras(kind, prove, keras, ops):
    def call(self, inputs):
        return CONSTRUCTS[kind](ops, ops.matmul(inputs, self.kernel))

    prove(lambda: make_layer(keras, call), X, batch=len(X))


DRAWS = {
    "normal": lambda random, x, seed: random.normal((4, 6), seed=seed),
    "truncated_normal": lambda random, x, seed: random.truncated_normal((4, 6), seed=seed),
    "randint": lambda random, x, seed: random.randint((4, 6), 1, 9, seed=seed),
    "gamma": lambda random, x, seed: random.gamma((4, 6), 2.0, seed=seed),
    "beta": lambda random, x, seed: random.beta((4, 6), 2.0, 3.0, seed=seed),
    "binomial": lambda random, x, seed: random.binomial((4, 6), 5.0, 0.4, seed=seed),
    "categorical": lambda random, x, seed: random.categorical(x, 6, seed=seed),
    "shuffle": lambda random, x, seed: random.shuffle(x, seed=seed),
    "dropout": lambda random, x, seed: random.dropout(x, 0.5, seed=seed),
}


@pytest.mark.needs("keras 3")
@pytest.mark.parametrize("kind", DRAWS)
def test_random_numbers_of_keras(kind, prove, keras, ops):
    def call(self, inputs):
        drawn = DRAWS[kind](keras.random, ops.matmul(inputs, self.kernel), self.generator)
        return ops.tanh(inputs) * ops.cast(drawn, "float32")

    def make():
        layer = make_layer(keras, call)
        layer.generator = keras.random.SeedGenerator(3)
        return layer

    prove(make, X, batch=len(X), predict=False)
