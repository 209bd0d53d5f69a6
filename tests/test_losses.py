"""Losses, metrics and updates that layers make inside a block."""

import inspect

import numpy as np
import pytest
from custom import make_layer
from proofs import floats, set_weights

from keras_remat import Recompute, RematError

X = floats(4, 6)
COUNT = ("loop", "function", "graph", "fit", "fit-eager")


def make_with_loss(keras, ops):
    takes_inputs = len(inspect.signature(keras.layers.Layer.add_loss).parameters) > 2
    options = (lambda x: {"inputs": x}) if takes_inputs else (lambda x: {})

    def call(self, inputs):
        outputs = ops.matmul(inputs, self.kernel)
        self.add_loss(0.1 * ops.mean(ops.square(outputs)), **options(inputs))
        return outputs

    return make_layer(keras, call)


def make_with_metric(keras, ops):
    arguments = inspect.signature(keras.layers.Layer.add_metric).parameters
    options = {"aggregation": "mean"} if "aggregation" in arguments else {}

    def call(self, inputs):
        outputs = ops.matmul(inputs, self.kernel)
        self.add_metric(ops.mean(outputs), name="seen", **options)
        return outputs

    return make_layer(keras, call)


def make_with_update(keras, ops):
    def call(self, inputs):
        self.add_update(keras.backend.update_add(self.count, ops.sum(inputs)))
        return ops.matmul(inputs, self.kernel)

    layer = make_layer(keras, call)
    layer.count = layer.add_weight(name="count", shape=(), initializer="zeros", trainable=False)
    return layer


def make_regularized(keras, ops):
    l2 = keras.regularizers.l2(0.1)
    return keras.layers.Dense(6, kernel_regularizer=l2, activity_regularizer=l2)


@pytest.mark.modes(*COUNT)
@pytest.mark.parametrize("make", [make_with_loss, make_regularized])
def test_loss(make, prove, keras, ops):
    prove(lambda: make(keras, ops), X)


@pytest.mark.needs("keras 2")
@pytest.mark.modes(*COUNT)
def test_update(prove, keras, ops):
    prove(lambda: make_with_update(keras, ops), X)


@pytest.mark.modes("loop", "function", "graph")
@pytest.mark.parametrize("make", [make_with_loss, make_regularized])
def test_loss_in_nested_wrappers(make, prove, keras, ops):
    def make_block(inner):
        block = make_layer(keras, lambda self, inputs: self.inner(inputs), size=None)
        block.inner = inner
        return block

    prove(
        lambda: make(keras, ops),
        X,
        wrap=lambda layer: Recompute(make_block(Recompute(layer))),
        plain=make_block,
        again=False,
    )


@pytest.mark.modes("loop", "function", "graph")
def test_activity_loss_inside_time_distributed(prove, keras, ops):
    """In Keras 3 there is none: it runs `layer.call` by itself, step by step."""

    def series(layer, x):
        return keras.layers.TimeDistributed(layer)(x)

    prove(lambda: make_regularized(keras, ops), floats(8, 4, 6), call=series, again=False, less=False)


@pytest.mark.modes("loop", "function", "graph")
@pytest.mark.parametrize("make", [make_with_loss, make_regularized])
def test_loss_of_a_layer_whose_call_is_run_by_itself(make, prove, keras, ops):
    """The loss that its `call` adds is there; the one of its activity, which is added around it, is not."""

    def call(self, inputs):
        if not self.inner.built:
            self.inner.build((None, 6))
        return self.inner.call(inputs)

    def make_outer(inner):
        outer = make_layer(keras, call, size=None)
        outer.inner = inner
        return outer

    prove(lambda: make(keras, ops), X, wrap=lambda layer: make_outer(Recompute(layer)), plain=make_outer)


@pytest.mark.modes("loop", "function", "graph")
@pytest.mark.parametrize("make", [make_with_loss, make_regularized])
def test_loss_of_a_shared_block(make, prove, keras, ops):
    prove(lambda: make(keras, ops), X, call=lambda block, x: block(block(x)))


def make_reader(keras, ops, first):
    """A layer that reads what `first()` gives: a layer that is not its own, with losses."""

    def call(self, inputs):
        return ops.matmul(inputs, self.kernel) * (1.0 + sum(first().losses))

    return make_layer(keras, call)


def make_pair(keras, first, second):
    pair = make_layer(keras, lambda self, inputs: self.second(self.first(inputs)), size=None)
    pair.first, pair.second = first, second
    return pair


@pytest.fixture
def prove_reader(prove, keras, L, ops):
    """Prove for a block that reads the losses of the layer before it."""

    def prove_all():
        made = []

        def make():
            made.append(L.Dense(6, activity_regularizer=keras.regularizers.l2(0.1)))
            return make_reader(keras, ops, lambda: made[-1])

        def wrap(layer):
            return make_pair(keras, made[-1], Recompute(layer))

        prove(make, X, wrap=wrap, plain=lambda layer: make_pair(keras, made[-1], layer))

    return prove_all


@pytest.mark.modes("function", "graph", "fit")
def test_losses_from_before_a_block(prove_reader):
    prove_reader()


@pytest.mark.modes("loop")
def test_losses_from_before_an_eager_block(target, prove_reader):
    """TensorFlow would give them no gradient."""
    if target.tf is None:
        prove_reader()
    else:
        with pytest.raises(RematError, match="one that reads losses which layer .* added before it"):
            prove_reader()


@pytest.mark.modes("loop", "function")
def test_loss_of_a_block_whose_output_is_not_used(prove, keras, ops):
    def call(layer, x):
        layer(x)
        return x

    prove(lambda: make_with_loss(keras, ops), X, call=call, subclass=True, less=False)


@pytest.mark.needs("keras 2")
@pytest.mark.modes("fit", "fit-eager")
def test_metric(mode, target, keras, ops):
    histories = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = make_with_metric(keras, ops)
        model = keras.Sequential([keras.layers.Activation("linear", input_shape=(6,)), wrap(layer)])
        set_weights(model)
        options = {"run_eagerly": True} if mode == "fit-eager" else {}
        model.compile(target.sgd(), "mse", **options)
        assert model.metrics_names[-1] == "seen" or not hasattr(model, "metrics_names")
        histories.append(model.fit(X, X, epochs=3, shuffle=False, verbose=0).history["seen"])
    np.testing.assert_allclose(*histories, rtol=1e-6)


@pytest.mark.modes("loop")
def test_losses_are_listed_once(mode, keras, ops, tf):
    model = keras.Sequential([Recompute(make_regularized(keras, ops))])
    with tf.GradientTape() as tape:
        loss = ops.sum(model(X, training=True))
        losses = [float(one) for one in model.losses]
        loss += sum(model.losses)
    tape.gradient(loss, model.trainable_weights)
    assert len(losses) == 2
    assert [float(one) for one in model.losses] == losses


def test_losses_of_a_symbolic_model(target, keras, ops):
    counts = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        inputs = keras.Input((6,))
        outputs = wrap(make_regularized(keras, ops))(wrap(make_with_loss(keras, ops))(inputs))
        model = keras.models.Model(inputs, outputs)
        counts.append((len(model.losses), len(model.weights), len(model.trainable_weights)))
    assert counts[0] == counts[1]
