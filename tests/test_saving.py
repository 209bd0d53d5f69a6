"""Wrapped models are saved and loaded, and exchange weight files with plain ones in both directions."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from files import each_kind
from proofs import assert_same, floats, get_weights, set_weights

from keras_remat import Recompute, RecomputeSequential, RematError

X, Y = floats(4, 6), floats(4, 2, seed=1)


def plain(layer):
    return layer


def make_model(target, wrap=Recompute):
    """A model of named layers, one of which holds a model."""
    keras, L = target.keras, target.keras.layers
    inputs = keras.Input((6,), name="inputs")
    x = wrap(L.Dense(6, activation="tanh", name="first"))(inputs)
    inner = keras.Sequential(
        [L.Dense(6, name="a", input_shape=(6,)), L.BatchNormalization(name="b")], name="inner"
    )
    x = wrap(inner)(x)
    x = wrap(L.Dropout(0.5, seed=3, name="drop"))(x)
    model = keras.models.Model(inputs, L.Dense(2, name="last")(x))
    model.compile(target.sgd(), "mean_squared_error")  # Keras 3 does not find "mse" in HDF5 files
    return model


def assert_same_models(one, other):
    for pair in zip(get_weights(one), get_weights(other)):
        assert_same("weight", *pair)
    assert_same("prediction", one.predict(X), other.predict(X), 1e-6)


def assert_trains(model):
    before = get_weights(model)
    model.fit(X, Y, epochs=1, verbose=0)
    assert any((old != new).any() for old, new in zip(before, get_weights(model)))


def test_names_and_order_of_weights(target):
    names = []
    for wrap in (plain, Recompute):
        target.reset()
        model = make_model(target, wrap)
        names.append(
            (
                [layer.name for layer in model.layers],
                [[weight.name for weight in layer.weights] for layer in model.layers],
                [weight.name for weight in model.trainable_weights],
                [weight.name for weight in model.non_trainable_weights],
            )
        )
    assert names[0] == names[1]


@each_kind
@pytest.mark.parametrize("wraps", [(plain, Recompute), (Recompute, plain), (Recompute, Recompute)])
def test_weight_files(wraps, kind, target, tmp_path):
    target.reset()
    source = make_model(target, wraps[0])
    set_weights(source)
    other = make_model(target, wraps[1])
    kind.carry(source, other, tmp_path)
    assert_same_models(source, other)


@pytest.mark.needs("saved models")
@pytest.mark.parametrize("wraps", [(plain, plain), (Recompute, Recompute)])
def test_checkpoints(wraps, target, tmp_path):
    path = str(tmp_path / "weights")
    target.reset()
    source = make_model(target, wraps[0])
    set_weights(source)
    source.save_weights(path)
    other = make_model(target, wraps[1])
    other.load_weights(path)
    assert_same_models(source, other)


@pytest.mark.needs("several wrappers")
def test_second_wrapper_of_a_layer_has_a_name_of_its_own(keras, L):
    layer = L.Dense(3, name="d")
    names = [Recompute(layer).name for _ in range(3)]
    assert names[0] == "d" and len(set(names)) == 3
    assert Recompute(layer, name="mine").name == "mine"


@pytest.mark.needs("one wrapper")
def test_second_wrapper_of_a_layer_is_the_first(keras, L):
    """Where a model would train shared weights once for each wrapper."""
    layer = L.Dense(3)
    wrapper = Recompute(layer, name="mine")
    assert wrapper.name == "mine"
    assert Recompute(layer) is wrapper and Recompute(layer, name="mine") is wrapper
    with pytest.raises(RematError, match="Received: name='other'"):
        Recompute(layer, name="other")
    with pytest.raises(RematError, match="Received: policy='dots'"):
        Recompute(layer, policy="dots")


def assert_same_config(model, twin):
    assert [type(layer).__name__ for layer in twin.layers] == [type(layer).__name__ for layer in model.layers]
    assert isinstance(twin.layers[1], Recompute)
    for old, new in zip(model.layers, twin.layers):
        assert old.name == new.name


def test_config(target):
    target.reset()
    model = make_model(target)
    set_weights(model)
    twin = type(model).from_config(model.get_config())
    assert_same_config(model, twin)
    twin.set_weights(model.get_weights())
    assert_same_models(model, twin)


def make_model_of_a_list(keras, L):
    block = RecomputeSequential([L.Dense(3, activation="tanh"), L.Dense(2)], segments=2, name="block")
    model = keras.Sequential([L.Activation("linear", input_shape=(6,)), block])
    model.compile("sgd", "mean_squared_error")
    return model


def assert_same_model_of_a_list(model, twin):
    found = twin.layers[-1]
    assert isinstance(found, RecomputeSequential)
    assert (found.segments, found.name, len(found.layers)) == (2, "block", 2)
    assert_same_models(model, twin)


def test_config_of_a_list(target, keras, L):
    model = make_model_of_a_list(keras, L)
    twin = type(model).from_config(model.get_config())
    twin.set_weights(model.get_weights())
    assert_same_model_of_a_list(model, twin)


def test_h5_file_of_a_list(target, keras, L, tmp_path):
    path = str(tmp_path / "model.h5")
    model = make_model_of_a_list(keras, L)
    model.save(path)
    assert_same_model_of_a_list(model, keras.models.load_model(path))


@pytest.mark.needs("keras files")
def test_keras_file_of_a_list(target, keras, L, tmp_path):
    path = str(tmp_path / "model.keras")
    model = make_model_of_a_list(keras, L)
    model.save(path)
    assert_same_model_of_a_list(model, keras.models.load_model(path))


def test_clone(target, keras):
    target.reset()
    model = make_model(target)
    twin = keras.models.clone_model(model)
    assert_same_config(model, twin)
    twin.set_weights(model.get_weights())
    assert_same_models(model, twin)


def save_and_load(target, path):
    target.reset()
    model = make_model(target)
    set_weights(model)
    model.save(path)
    twin = target.keras.models.load_model(path)
    assert_same_models(model, twin)
    return model, twin


def test_h5_file(target, tmp_path):
    model, twin = save_and_load(target, str(tmp_path / "model.h5"))
    assert_same_config(model, twin)
    twin.compile(target.sgd(), "mse")
    assert_trains(twin)


def test_h5_file_stays_compiled(target, tmp_path):
    assert_trains(save_and_load(target, str(tmp_path / "model.h5"))[1])


@pytest.mark.needs("keras files")
def test_keras_file(target, tmp_path):
    model, twin = save_and_load(target, str(tmp_path / "model.keras"))
    assert_same_config(model, twin)
    assert_trains(twin)


@pytest.mark.needs("keras 3")
def test_pickle(target):
    target.reset()
    model = make_model(target)
    set_weights(model)
    twin = pickle.loads(pickle.dumps(model))
    assert_same_models(model, twin)
    assert_same_config(model, twin)
    assert_trains(twin)


@pytest.mark.needs("saved models")
def test_saved_model(target, tmp_path):
    assert_trains(save_and_load(target, str(tmp_path / "model"))[1])


SERVE = """
import sys
sys.modules["keras_remat"] = None  # as if it were not installed
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
assert "KerasRemat" not in str(serve.graph.as_graph_def())
(outputs,) = serve(tf.constant(np.load(sys.argv[2]))).values()
np.save(sys.argv[3], outputs.numpy())
"""


def assert_serves_without_us(model, folder):
    paths = [str(folder / name) for name in ("model", "x.npy", "y.npy")]
    np.save(paths[1], X)
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([sys.executable, "-c", SERVE, *paths], check=True, env=environment)
    assert_same("prediction", model.predict(X), np.load(paths[2]), 1e-6)


@pytest.mark.needs("saved models")
def test_saved_model_serves_without_us(target, tmp_path):
    target.reset()
    model = make_model(target)
    set_weights(model)
    model.save(str(tmp_path / "model"))
    assert_serves_without_us(model, tmp_path)


@pytest.mark.needs("keras 3")
def test_export_serves_without_us(target, tmp_path):
    target.reset()
    model = make_model(target)
    set_weights(model)
    model.fit(X, Y, verbose=0)
    model.export(str(tmp_path / "model"))
    assert_serves_without_us(model, tmp_path)
