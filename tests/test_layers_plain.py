"""Layers without time: dense, convolution, pooling, normalization, noise, embeddings."""

import pytest
from model_proofs import prove_model
from proofs import floats, ints, zoo

from keras_remat import recompute_all

pytestmark = pytest.mark.modes("loop", "function", "graph")

IMAGE, SERIES = floats(2, 6, 6, 3), floats(2, 7, 3)

LAYERS = {
    "Dense": (lambda L: L.Dense(5, activation="tanh"), floats(4, 6)),
    "Dense on a series": (lambda L: L.Dense(5, activation="relu"), SERIES),
    "Dense without bias": (lambda L: L.Dense(5, use_bias=False), floats(4, 6)),
    "Activation": (lambda L: L.Activation("softmax"), floats(4, 6)),
    "PReLU": (lambda L: L.PReLU(), floats(4, 6)),
    "LeakyReLU": (lambda L: L.LeakyReLU(), floats(4, 6)),
    "Flatten": (lambda L: L.Flatten(), IMAGE),
    "Reshape": (lambda L: L.Reshape((3, 2)), floats(4, 6)),
    "Conv1D": (lambda L: L.Conv1D(4, 3, padding="causal"), SERIES),
    "Conv2D": (lambda L: L.Conv2D(4, 3, activation="relu"), IMAGE),
    "Conv2D with strides": (lambda L: L.Conv2D(4, 3, strides=2, padding="same"), IMAGE),
    "Conv3D": (lambda L: L.Conv3D(2, 2), floats(2, 3, 4, 4, 2)),
    "SeparableConv1D": (lambda L: L.SeparableConv1D(4, 3), SERIES),
    "SeparableConv2D": (lambda L: L.SeparableConv2D(4, 3), IMAGE),
    "DepthwiseConv2D": (lambda L: L.DepthwiseConv2D(3, depth_multiplier=2), IMAGE),
    "Conv2DTranspose": (lambda L: L.Conv2DTranspose(2, 3, strides=2), IMAGE),
    "Conv3DTranspose": (lambda L: L.Conv3DTranspose(2, 2), floats(2, 3, 3, 3, 2)),
    "LocallyConnected1D": (lambda L: L.LocallyConnected1D(2, 3), SERIES),
    "MaxPooling2D": (lambda L: L.MaxPooling2D(), IMAGE),
    "AveragePooling2D": (lambda L: L.AveragePooling2D(2), IMAGE),
    "GlobalAveragePooling1D": (lambda L: L.GlobalAveragePooling1D(), SERIES),
    "GlobalMaxPooling2D": (lambda L: L.GlobalMaxPooling2D(), IMAGE),
    "UpSampling2D": (lambda L: L.UpSampling2D(), IMAGE),
    "ZeroPadding2D": (lambda L: L.ZeroPadding2D(), IMAGE),
    "BatchNormalization": (lambda L: L.BatchNormalization(momentum=0.7), floats(4, 6)),
    "BatchNormalization of images": (lambda L: L.BatchNormalization(momentum=0.7), IMAGE),
    "LayerNormalization": (lambda L: L.LayerNormalization(), SERIES),
    "GroupNormalization": (lambda L: L.GroupNormalization(3), IMAGE),
    "UnitNormalization": (lambda L: L.UnitNormalization(), SERIES),
    "SpectralNormalization": (lambda L: L.SpectralNormalization(L.Dense(3)), floats(4, 6)),
    "Dropout": (lambda L: L.Dropout(0.5, seed=3), floats(4, 6)),
    "GaussianNoise": (lambda L: L.GaussianNoise(0.5), floats(4, 6)),
    "GaussianDropout": (lambda L: L.GaussianDropout(0.5), floats(4, 6)),
    "AlphaDropout": (lambda L: L.AlphaDropout(0.5, seed=3), floats(4, 6)),
    "SpatialDropout1D": (lambda L: L.SpatialDropout1D(0.5), SERIES),
    "SpatialDropout2D": (lambda L: L.SpatialDropout2D(0.5), IMAGE),
    "ActivityRegularization": (lambda L: L.ActivityRegularization(l2=0.1), floats(4, 6)),
    "Embedding": (lambda L: L.Embedding(10, 4), ints(3, 5)),
    "RandomFlip": (lambda L: L.RandomFlip(seed=3), IMAGE),
    "RandomRotation": (lambda L: L.RandomRotation(0.3, seed=3), IMAGE),
    "RandomTranslation": (lambda L: L.RandomTranslation(0.3, 0.3, seed=3), IMAGE),
    "RandomZoom": (lambda L: L.RandomZoom(0.3, seed=3), IMAGE),
    "RandomCrop": (lambda L: L.RandomCrop(4, 4, seed=3), IMAGE),
    "RandomBrightness": (lambda L: L.RandomBrightness(0.3, seed=3), IMAGE),
}


@zoo(LAYERS)
def test_layer(case, prove, L):
    make, x = case
    prove(lambda: make(L), x)


@pytest.mark.needs("grouped convolutions")
@pytest.mark.modes("loop", "function", "fit", "xla")
@pytest.mark.parametrize("name", ["Conv1D", "Conv2D"])
def test_grouped_convolution(name, prove, L):
    x = SERIES if name == "Conv1D" else IMAGE
    prove(lambda: getattr(L, name)(6, 3, groups=3, activation="tanh"), x)


@pytest.mark.needs("grouped convolutions")
@pytest.mark.modes("loop", "function")
def test_all_before_a_grouped_convolution_runs_again(target, mode):
    """It is a function that XLA compiles, which reads its weights itself."""

    def make(kit):
        inputs = kit.Input((6, 6, 4))
        x = kit.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
        x = kit.Conv2D(4, 3, padding="same", groups=4)(x)
        return kit.Model(inputs, kit.Dense(2)(kit.GlobalAveragePooling2D()(x)))

    prove_model(target, mode, make, (floats(2, 6, 6, 4),), lambda model: recompute_all(model, strategy=1))


MERGES = {
    "Add": lambda L: L.Add(),
    "Multiply": lambda L: L.Multiply(),
    "Maximum": lambda L: L.Maximum(),
    "Concatenate": lambda L: L.Concatenate(),
    "Dot": lambda L: L.Dot(1),
}


@zoo(MERGES)
def test_layer_of_two_inputs(case, prove, L):
    prove(lambda: case(L), floats(4, 6), floats(4, 6, seed=1))


REGULARIZED = {
    "Dense": lambda L, l2: L.Dense(5, kernel_regularizer=l2, activity_regularizer=l2),
    "Conv1D": lambda L, l2: L.Conv1D(5, 2, bias_regularizer=l2, activity_regularizer=l2),
    "LSTM": lambda L, l2: L.LSTM(4, activity_regularizer=l2),
}


@zoo(REGULARIZED)
def test_regularizers(case, prove, L, keras):
    prove(lambda: case(L, keras.regularizers.l2(0.1)), SERIES)


@pytest.mark.modes("fit", "fit-eager")
def test_constraints(prove, L, keras):
    def make():
        return L.Dense(5, kernel_constraint=keras.constraints.MaxNorm(0.5))

    _, wrapped = prove(make, floats(4, 6))
    assert ((wrapped.weights[0] ** 2).sum(axis=0) <= 0.25 + 1e-6).all()


def test_sparse_gradients_stay_sparse(prove, L):
    plain, wrapped = prove(lambda: L.Embedding(10, 4), ints(3, 5))
    for grad, other in zip(plain.steps[0].grads, wrapped.steps[0].grads):
        assert type(grad) is type(other)


@pytest.mark.parametrize("training", [False, True])
def test_training_given(training, prove, L):
    def call(layer, x):
        return layer(x, training=training)

    prove(lambda: L.BatchNormalization(momentum=0.7), floats(4, 6), call=call)


def test_frozen_batch_normalization(prove, L):
    def make():
        layer = L.BatchNormalization(momentum=0.7)
        layer.trainable = False
        return layer

    prove(make, floats(4, 6))


@pytest.mark.modes("loop", "function")
@pytest.mark.parametrize("name", ["BatchNormalization", "Dropout"])
def test_training_as_a_tensor(name, prove, L, tf):
    makers = {
        "BatchNormalization": lambda: L.BatchNormalization(momentum=0.7),
        "Dropout": lambda: L.Dropout(0.5, seed=3),
    }

    def call(layer, x):
        return layer(x, training=tf.reduce_sum(tf.square(x)) >= 0.0)

    prove(makers[name], floats(4, 6), call=call, subclass=True, predict=False)
