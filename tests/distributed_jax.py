"""Train on four devices, plain and recomputed, in a process of its own: `distributed_jax.py data|model`."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

from keras_remat import Recompute


def distribution(kind):
    devices = keras.distribution.list_devices()
    assert len(devices) == 4
    if kind == "data":
        return keras.distribution.DataParallel(devices=devices)
    mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], devices=devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*first.*kernel"] = (None, "model")
    layout[".*second.*kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def make_block():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="gelu", name="first", activity_regularizer="l2"),
            layers.BatchNormalization(momentum=0.7),
            layers.Dropout(0.3, seed=3),
            layers.Dense(8, name="second"),
        ]
    )


def train(wrap, kind):
    keras.utils.clear_session()  # which forgets the distribution as well
    keras.distribution.set_distribution(distribution(kind))
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((8,)), wrap(make_block()), wrap(make_block()), keras.layers.Dense(2)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    rng = np.random.RandomState(0)
    x, y = rng.randn(16, 8).astype("float32"), rng.randn(16, 2).astype("float32")
    losses = model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]
    kernels = [v.value for v in model.trainable_variables if v.path.endswith("first/kernel")]
    assert all(len(kernel.sharding.device_set) == 4 for kernel in kernels)
    return [losses, *(np.array(v.value) for v in model.variables)]


def main(kind):
    plain, wrapped = train(lambda block: block, kind), train(Recompute, kind)
    assert plain[0][-1] < plain[0][0]
    for one, other in zip(plain, wrapped):
        one, other = np.asarray(one, "float64"), np.asarray(other, "float64")
        assert np.max(np.abs(one - other)) <= 1e-6 * max(1.0, np.max(np.abs(one)))
    assert jax.device_count() == 4


if __name__ == "__main__":
    main(sys.argv[1])
