"""Losses, metrics and updates that layers make inside a block."""

import inspect

import numpy as np
import pytest
from custom import make_layer
from proofs import floats, set_weights

from keras_remat import Recompute

X = floats(4, 6)
COUNT = ("loop", "function", "graph", "fit", "fit-eager")


def make_with_loss(keras, tf):
    def call(self, inputs):
        outputs = tf.matmul(inputs, self.kernel)
        self.add_loss(0.1 * tf.reduce_mean(tf.square(outputs)), inputs=inputs)
        return outputs

    return make_layer(keras, call)


def make_with_metric(keras, tf):
    arguments = inspect.signature(keras.layers.Layer.add_metric).parameters
    options = {"aggregation": "mean"} if "aggregation" in arguments else {}

    def call(self, inputs):
        outputs = tf.matmul(inputs, self.kernel)
        self.add_metric(tf.reduce_mean(outputs), name="seen", **options)
        return outputs

    return make_layer(keras, call)


def make_with_update(keras, tf):
    def call(self, inputs):
        self.add_update(keras.backend.update_add(self.count, tf.reduce_sum(inputs)))
        return tf.matmul(inputs, self.kernel)

    layer = make_layer(keras, call)
    layer.count = layer.add_weight(name="count", shape=(), initializer="zeros", trainable=False)
    return layer


def make_regularized(keras, tf):
    l2 = keras.regularizers.l2(0.1)
    return keras.layers.Dense(6, kernel_regularizer=l2, activity_regularizer=l2)


@pytest.mark.modes(*COUNT)
@pytest.mark.parametrize("make", [make_with_loss, make_regularized])
def test_loss(make, prove, keras, tf):
    prove(lambda: make(keras, tf), X)


@pytest.mark.modes(*COUNT)
def test_update(prove, keras, tf):
    prove(lambda: make_with_update(keras, tf), X)


@pytest.mark.modes("loop", "function", "graph")
@pytest.mark.parametrize("make", [make_with_loss, make_regularized])
def test_loss_in_nested_wrappers(make, prove, keras, tf):
    def make_block(inner):
        block = make_layer(keras, lambda self, inputs: self.inner(inputs), size=None)
        block.inner = inner
        return block

    prove(
        lambda: make(keras, tf),
        X,
        wrap=lambda layer: Recompute(make_block(Recompute(layer))),
        plain=make_block,
        again=False,
    )


@pytest.mark.modes("loop", "function", "graph")
@pytest.mark.parametrize("make", [make_with_loss, make_regularized])
def test_loss_of_a_shared_block(make, prove, keras, tf):
    prove(lambda: make(keras, tf), X, call=lambda block, x: block(block(x)))


@pytest.mark.modes("loop", "function")
def test_loss_of_a_block_whose_output_is_not_used(prove, keras, tf):
    def call(layer, x):
        layer(x)
        return x

    prove(lambda: make_with_loss(keras, tf), X, call=call, subclass=True, less=False)


@pytest.mark.modes("fit", "fit-eager")
def test_metric(mode, target, keras, tf):
    histories = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        layer = make_with_metric(keras, tf)
        model = keras.Sequential([keras.layers.Activation("linear", input_shape=(6,)), wrap(layer)])
        set_weights(model)
        options = {"run_eagerly": True} if mode == "fit-eager" else {}
        model.compile(target.sgd(), "mse", **options)
        assert model.metrics_names[-1] == "seen" or not hasattr(model, "metrics_names")
        histories.append(model.fit(X, X, epochs=3, shuffle=False, verbose=0).history["seen"])
    np.testing.assert_allclose(*histories, rtol=1e-6)


@pytest.mark.modes("loop")
def test_losses_are_listed_once(mode, keras, tf):
    model = keras.Sequential([Recompute(make_regularized(keras, tf))])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X, training=True))
        losses = [float(one) for one in model.losses]
        loss += sum(model.losses)
    tape.gradient(loss, model.trainable_weights)
    assert len(losses) == 2
    assert [float(one) for one in model.losses] == losses


def test_losses_of_a_symbolic_model(target, keras, tf):
    counts = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        inputs = keras.Input((6,))
        outputs = wrap(make_regularized(keras, tf))(wrap(make_with_loss(keras, tf))(inputs))
        model = keras.models.Model(inputs, outputs)
        counts.append((len(model.losses), len(model.weights), len(model.trainable_weights)))
    assert counts[0] == counts[1]
