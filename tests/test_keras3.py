"""What only Keras 3 has: layers, seeds, adapters and models of it, on each of its frameworks."""

import numpy as np
import pytest
import steps
from blocks import settled
from custom import make_layer
from model_proofs import cut
from proofs import assert_same, floats, get_weights, ints, mark, set_weights, zoo

from keras_remat import Recompute, RecomputeSequential, RematError, recompute_all

pytestmark = [pytest.mark.needs("keras 3"), pytest.mark.modes("loop", "function")]

X, SERIES = floats(4, 6), floats(2, 5, 8)

ATTENTION = {
    "MultiHeadAttention": lambda L: L.MultiHeadAttention(2, 4, dropout=0.3),
    "GroupedQueryAttention": lambda L: L.GroupedQueryAttention(4, 4, 2, dropout=0.3),
}


@zoo(ATTENTION)
@pytest.mark.parametrize("names", ["query, value", "query, value and mask"])
def test_attention(case, names, prove, L):
    inputs = (SERIES, floats(2, 5, 8, seed=1))
    if "mask" in names:
        inputs = (*inputs, np.tril(np.ones((2, 5, 5), "float32")))

    def call(layer, query, value, mask=None):
        options = {} if mask is None else {"attention_mask": mask}
        return layer(query, value, **options)

    prove(lambda: case(L), *inputs, call=call)


@pytest.mark.needs("remat scopes")
@pytest.mark.modes("loop")  # in functions of TensorFlow Keras itself raises
def test_wrapper_made_in_a_scope_of_keras(prove, keras, L):
    def wrap(layer):
        with keras.RematScope("full"):
            return Recompute(layer)

    prove(lambda: L.Dense(6, activation="tanh", activity_regularizer="l2"), X, wrap=wrap)


@pytest.mark.needs("remat scopes")
@pytest.mark.modes("loop")
def test_converted_layer_made_in_a_scope_of_keras(mode, target, keras, L):
    results = []
    for convert in (lambda model: model, lambda model: recompute_all(model, match="hidden")):
        target.reset()
        call = {"call": lambda self, inputs, training=None: self.head(self.hidden(inputs))}
        model = type("Pair", (keras.Model,), call)()
        with keras.RematScope("full"):
            model.hidden = L.Dense(6, activation="tanh", name="hidden")
        model.head = L.Dense(2)
        model(target.tensor(X))
        set_weights(model)
        results.append(steps.trainer(target, mode, convert(model)).train([X], floats(4, 2, seed=1), 3))
    for plain, converted in zip(*results):
        for pair in zip([plain.loss, *plain.grads], [converted.loss, *converted.grads]):
            assert_same("loss or gradient", *pair, tolerance=target.tolerance(mode))


SEEDS = {"its own": 3, "drawn": None}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_seed_generator(seed, prove, keras):
    def call(self, inputs):
        noise = keras.random.normal(keras.ops.shape(inputs), seed=self.generator)
        return keras.random.dropout(inputs @ self.kernel + noise, 0.3, seed=self.generator)

    def make():
        layer = make_layer(keras, call)
        layer.generator = keras.random.SeedGenerator(seed)
        return layer

    prove(make, X, predict=False)


@pytest.mark.needs("global seed")
def test_global_seed_generator(prove, keras):
    def call(self, inputs):
        return inputs @ self.kernel + keras.random.normal(keras.ops.shape(inputs))

    prove(lambda: make_layer(keras, call), X, predict=False)


def test_fixed_seed(prove, keras):
    def call(self, inputs):
        return keras.random.dropout(inputs @ self.kernel, 0.3, seed=7)

    prove(lambda: make_layer(keras, call), X)


def test_generator_shared_by_blocks(prove, keras, L):
    """The seeds of the second block are no longer there when the first one runs again."""
    generator = []

    def call(self, inputs):
        return keras.random.dropout(inputs @ self.kernel, 0.3, seed=generator[-1])

    def make_one(inner=None):
        layer = make_layer(keras, call)
        layer.generator = generator[-1]
        return layer

    def make():
        generator.append(keras.random.SeedGenerator(5))
        return make_one()

    def call_both(block, x):
        other = make_one()
        other = Recompute(other) if type(block).__mro__[1].__name__ == "Recompute" else other
        return other(block(x))

    prove(make, X, call=call_both, less=False, again=False)


def adapt(keras, layer, x, *, quantized=False):
    """A model of a layer that is frozen but for an adapter, on integer weights if `quantized`."""
    model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype), layer])
    if quantized:
        layer.quantize("int8")
    layer.enable_lora(2)
    return model


ADAPTERS = {
    "Dense": lambda L: (L.Dense(6, activation="tanh"), X),
    "EinsumDense": lambda L: (L.EinsumDense("abc,cd->abd", (5, 4)), SERIES),
    "Embedding": lambda L: (L.Embedding(10, 4), ints(3, 5)),
}


@zoo(ADAPTERS)
@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "int8"])
def test_adapter(case, quantized, prove, keras, L):
    """`enable_lora`: the block has frozen weights, in integers or not, and two that are trained."""
    _, x = case(L)
    prove(lambda: adapt(keras, case(L)[0], x, quantized=quantized), x, predict=False, less=not quantized)


def test_frozen_inside(prove, keras, L):
    def make():
        frozen = L.Dense(6, activation="tanh")
        frozen.trainable = False
        return keras.Sequential([frozen, L.BatchNormalization(momentum=0.7), L.Dense(6)])

    prove(make, X)


def make_ops_model(keras, L):
    """A functional model of `keras.ops`, with dicts of tensors in and out."""
    ops = keras.ops
    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((4,), name="b")}
    x = L.Dense(5, activation="tanh")(inputs["a"])
    y = ops.sigmoid(L.Dense(5)(inputs["b"]))
    z = ops.concatenate([x * y, ops.square(x)], axis=-1)
    z = L.Dropout(0.3, seed=3)(z)
    z = ops.split(L.Dense(4, activation="gelu")(z), 2, axis=-1)
    return keras.Model(inputs, {"first": z[0] + 1.0, "second": ops.max(z[1], axis=-1, keepdims=True)})


@pytest.mark.modes("fit", "fit-eager")
@pytest.mark.parametrize("convert", [cut, lambda m: recompute_all(m, strategy="every")])
def test_dicts_and_ops(convert, mode, target, keras, L):
    x, results = {"a": X, "b": floats(4, 4, seed=1)}, []
    y = {"first": floats(4, 2, seed=2), "second": floats(4, 1, seed=3)}
    for change in (lambda model: model, convert):
        target.reset()
        model = change(make_ops_model(keras, L))
        set_weights(model)
        loss = {"first": "mse", "second": "mse"}
        model.compile(target.sgd(), loss, run_eagerly=mode == "fit-eager")
        history = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history
        results.append([*history["loss"], *get_weights(model), *model.predict(x, verbose=0).values()])
    assert len(set(results[0][:3])) == 3
    for plain, converted in zip(*results):
        assert_same("loss, weight or prediction", plain, converted, target.tolerance(mode))


@pytest.mark.modes("loop")
def test_metric_inside(mode, target, keras, L):
    """A metric that a layer updates in its call counts once a step."""

    def call(self, inputs):
        outputs = inputs @ self.kernel
        self.seen.update_state(keras.ops.mean(keras.ops.square(outputs)))
        return outputs

    found = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = make_layer(keras, call)
        layer.seen = keras.metrics.Mean(name="seen")
        model = keras.Sequential([keras.Input((6,)), wrap(layer), L.Dense(2)])
        set_weights(model)
        model.compile(target.sgd(), "mse")
        model.fit(X, floats(4, 2, seed=1), batch_size=2, epochs=2, shuffle=False, verbose=0)
        found.append(target.get_values(layer.seen.variables))
    assert found[0][1] == 2  # the batches of the last epoch
    for plain, wrapped in zip(*found):
        assert_same("metric", plain, wrapped, target.tolerance("fit"))


WRAPS = {"Recompute": Recompute, "RecomputeSequential": lambda layer: RecomputeSequential([layer])}


@pytest.mark.modes("loop")
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_masks_that_a_layer_destroys(wrap, prove, keras, L):
    """A wrapper hands on the masks that the layer sets, not those that it was given."""

    def call(block, ids):
        embedded = L.Embedding(10, 6, mask_zero=True)(ids)
        return L.LSTM(3)(block(embedded))

    ids = ints(4, 5, high=3)
    for make in (lambda: L.Conv1D(6, 1), lambda: keras.Sequential([L.Dense(6)])):
        prove(make, ids, call=call, wrap=wrap, less=False)


@pytest.mark.modes("loop")
def test_masks_of_another_shape(mode, target, L):
    embedded = L.Embedding(10, 6, mask_zero=True)(target.tensor(ints(4, 5, high=3)))
    for block in (Recompute(L.LSTM(2)), RecomputeSequential([L.LSTM(2)])):
        assert target.mask_of(block(embedded, training=True)) is None


@pytest.mark.needs("quantized layers")
@pytest.mark.modes("fit")
def test_quantized_before_it_is_wrapped(mode, target, keras, L):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = L.Dense(6, activation="tanh")
        layer.build((None, 6))
        layer.quantize("int8")
        model = keras.Sequential([keras.Input((6,)), L.Dense(6), wrap(layer), L.Dense(2)])
        model.compile(target.sgd(), "mse")
        losses = model.fit(X, floats(4, 2, seed=1), epochs=3, shuffle=False, verbose=0).history["loss"]
        results.append([losses, *get_weights(model)])
    for plain, wrapped in zip(*results):
        assert_same("loss or weight", plain, wrapped, target.tolerance(mode))


@pytest.mark.needs("quantized layers")
def test_quantized_layers_that_match(prove, keras, L):
    """`quantize` lets Keras run another method than `call`."""

    def quantized(activation):
        layers = [L.Dense(6), L.Dense(6, activation=activation, name="block"), L.Dense(2)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.get_layer("block").quantize("int8")
        return model

    prove(
        lambda: L.Activation("tanh"),
        X,
        plain=quantized,
        wrap=lambda activation: recompute_all(quantized(activation), match="block"),
    )


def test_bidirectional_takes_a_plain_layer(L):
    with pytest.raises(RematError, match="Wrap the outer layer"):
        L.Bidirectional(Recompute(L.LSTM(2)))


@pytest.mark.modes("loop")
def test_call_without_gradient_runs_once(mode, target, keras, L):
    layer = L.Dense(6, activation="tanh")
    runs = mark(target, layer)
    model = keras.Sequential([keras.Input((6,)), Recompute(layer)])
    del settled(runs)[:]
    model.predict(X, verbose=0)
    assert len(settled(runs)) == 1
