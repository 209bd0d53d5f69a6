"""Wrappers in wrappers, around models, inside Keras' own wrappers, shared, and lists of layers."""

import copy

import numpy as np
import pytest
import steps
from custom import make_layer
from proofs import assert_same, floats, ints

from keras_remat import Recompute, RecomputeSequential, RematError, recompute_all

pytestmark = pytest.mark.modes("loop", "function", "graph")

# Of two samples alone the gradient of normalization is nothing but rounding.
X, SERIES = floats(4, 6), floats(8, 4, 6)


def keep(layer):
    return layer


def to_numpy(tensor):
    return tensor.detach().numpy() if hasattr(tensor, "detach") else np.array(tensor)


def make_block(keras, first, wrap=keep):
    """A residual block of `first` and two more layers, each of which `wrap` may change."""
    L = keras.layers

    def call(self, inputs):
        return self.dropout(self.norm(self.dense(inputs))) + inputs

    block = make_layer(keras, call, size=None)
    block.dense, block.norm = wrap(first), wrap(L.BatchNormalization())
    block.dropout = wrap(L.Dropout(0.4, seed=2))
    return block


@pytest.fixture
def prove_block(prove, keras, L):
    """Prove for a block; `outside` and `inside` wrap it and its layers in the recomputed model."""

    def prove_all(outside=Recompute, inside=keep, **options):
        prove(
            lambda: L.Dense(6, activation="tanh"),
            X,
            plain=lambda first: make_block(keras, first),
            wrap=lambda first: outside(make_block(keras, first, inside)),
            **options,
        )

    return prove_all


def test_block(prove_block):
    prove_block()


@pytest.mark.parametrize("depth", [1, 2])
def test_nested(depth, prove_block):
    def inside(layer):
        return layer if depth == 1 else Recompute(layer)

    prove_block(inside=lambda layer: Recompute(inside(layer)), again=False)


def test_only_inner_layers_wrapped(prove_block):
    prove_block(outside=keep, inside=Recompute)


def test_wrapper_in_wrapper(prove, L):
    prove(
        lambda: L.Dense(6, activation="tanh"), X, wrap=lambda layer: Recompute(Recompute(layer)), again=False
    )


# In one graph, the updates of statistics by two calls race with each other, in plain Keras as well.
@pytest.mark.modes("loop", "function")
def test_called_twice(prove_block):
    prove_block(call=lambda block, x: block(block(x)))


def test_layer_called_twice(prove, L):
    prove(lambda: L.Dense(6, activation="tanh"), X, call=lambda layer, x: layer(layer(x)))


def test_two_wrappers_of_one_layer(prove, L):
    prove(
        lambda: L.Dense(6, activation="tanh"),
        X,
        wrap=lambda layer: [Recompute(layer), Recompute(layer)],
        plain=lambda layer: [layer, layer],
        call=lambda pair, x: pair[1](pair[0](x)),
    )


@pytest.mark.modes("loop")
@pytest.mark.needs("copies")
def test_deep_copies(mode, target, keras, L):
    """A copy runs its own layer, wrapped or converted."""
    wrapped = Recompute(L.Dense(3))
    x = target.tensor(X)
    wrapped(x)
    converted = L.Dense(3, name="converted")
    converted(x)
    holder = type("Holder", (keras.Model,), {"call": lambda self, inputs: self.block(inputs)})()
    holder.block = converted
    recompute_all(holder, match="converted")
    for block in (wrapped, converted):
        twin = copy.deepcopy(block)
        kernel, bias = [value * 2.0 + 1.0 for value in target.get_values(twin.weights)]
        twin.set_weights([kernel, bias])
        np.testing.assert_allclose(to_numpy(twin(x)), X @ kernel + bias, rtol=1e-5)
        assert np.abs(to_numpy(twin(x)) - to_numpy(block(x))).max() > 0.1


def test_sequential_model(prove, keras, L):
    def make():
        layers = [L.Dense(6, activation="tanh"), L.BatchNormalization(), L.Dropout(0.4, seed=2), L.Dense(6)]
        return keras.Sequential(layers)

    prove(make, X)


def test_functional_model(prove, keras, L):
    def make():
        a, b = keras.Input((6,)), keras.Input((6,))
        shared = L.Dense(6, activation="tanh")
        c = L.add([shared(a), L.Dropout(0.4, seed=2)(shared(b))])
        return keras.models.Model([a, b], [c, L.concatenate([c, a])])

    prove(make, X, floats(4, 6, seed=1))


@pytest.mark.modes("loop", "function")
def test_subclassed_model(prove, keras, L):
    class Inner(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.drop = L.Dense(6, activation="tanh"), L.Dropout(0.4, seed=2)

        def call(self, inputs, training=None):
            return self.drop(self.dense(inputs), training=training)

    prove(Inner, X, subclass=True)


def test_model_that_makes_a_mask(prove, keras, L):
    def make():
        return keras.Sequential([L.Embedding(10, 6, mask_zero=True), L.SimpleRNN(6, return_sequences=True)])

    ids = ints(3, 5)
    ids[:, 3:] = 0
    prove(make, ids, call=lambda model, x: L.SimpleRNN(4)(model(x)), again=False, less=False)


@pytest.mark.parametrize("name", ["Dense", "BatchNormalization", "Dropout"])
def test_inside_time_distributed(name, prove, L):
    makers = {
        "Dense": lambda: L.Dense(6, activation="tanh"),
        "BatchNormalization": lambda: L.BatchNormalization(momentum=0.7),
        "Dropout": lambda: L.Dropout(0.4, seed=2),
    }
    # tf.keras 1.15 calls a layer that it takes for a user's step by step, and once more to see its outputs.
    once = getattr(L.TimeDistributed(makers[name]()), "_always_use_reshape", True)
    prove(makers[name], SERIES, call=lambda layer, x: L.TimeDistributed(layer)(x), again=once, less=once)


@pytest.mark.modes("loop", "function", "fit")
def test_custom_layer_inside_time_distributed(prove, keras, L, ops):
    """Which Keras calls step by step if the batch size is known, wrapped or not."""

    def call(self, inputs):
        return ops.matmul(inputs / ops.sum(inputs), self.kernel)

    def series(layer, x):
        return L.TimeDistributed(layer)(x)

    def make():
        layer = make_layer(keras, call)
        layer.compute_output_shape = lambda shape: shape
        return layer

    prove(make, SERIES, call=series, batch=len(SERIES), again=False, less=False)


def test_inside_rnn(keras, L):
    with pytest.raises(RematError, match="Wrap the RNN layer"):
        L.RNN(Recompute(L.LSTMCell(4)))(keras.Input((4, 6)))


@pytest.mark.parametrize("segments", ["auto", "sqrt", 1, 2, 9])
def test_list_of_layers(segments, prove, keras, L):
    def layers(first):
        rest = [L.BatchNormalization(), L.Dropout(0.4, seed=2), L.Dense(6, activation="relu"), L.Dense(5)]
        return [first] + rest

    prove(
        lambda: L.Dense(6, activation="tanh"),
        X,
        wrap=lambda first: RecomputeSequential(layers(first), segments=segments),
        plain=lambda first: keras.Sequential(layers(first)),
    )


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_masks_cross_segments(segments, prove, keras, L):
    def layers(first):
        return [first, L.SimpleRNN(6, return_sequences=True), L.SimpleRNN(4)]

    ids = ints(3, 5)
    ids[:, 3:] = 0
    prove(
        lambda: L.Embedding(10, 6, mask_zero=True),
        ids,
        wrap=lambda first: RecomputeSequential(layers(first), segments=segments),
        plain=lambda first: keras.Sequential(layers(first)),
    )


def test_list_behaves_as_a_sequence(keras, L):
    layers = [L.Dense(4), L.Dropout(0.1), L.Dense(3)]
    block = RecomputeSequential(layers, segments=2)
    assert list(block.layers) == layers
    assert tuple(block(keras.Input((6,))).shape)[-1] == 3
    shape = block.compute_output_shape((None, 6))
    assert [getattr(size, "value", size) for size in shape] == [None, 3]
    expected = [weight.name for layer in layers for weight in layer.weights]
    assert [weight.name for weight in block.weights] == expected


@pytest.mark.modes("loop")
def test_thawed_weights(mode, target, keras, L):
    results = []
    for wrap in (keep, Recompute):
        target.reset()
        layer = L.Dense(6, activation="tanh", kernel_initializer="ones")
        model = keras.Sequential([wrap(layer), L.Dense(2, kernel_initializer="ones")])
        model.build((None, 6))
        for trainable in (True, False, True):
            layer.trainable = trainable
            results += steps.trainer(target, mode, model).train([X], floats(4, 2, seed=1), 1)
    assert [len(step.grads) for step in results] == [5, 3, 5] * 2
    for plain, wrapped in zip(results[:3], results[3:]):
        for pair in zip([plain.loss, *plain.grads], [wrapped.loss, *wrapped.grads]):
            assert_same("loss or gradient", *pair, tolerance=target.tolerance(mode))
