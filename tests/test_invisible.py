"""A converted model is the plain model to everybody who looks, and so are its files."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from files import each_kind
from model_proofs import cut
from models import (
    Kit,
    make_chain,
    make_concatenations,
    make_nested,
    make_plain_nest,
    make_plain_skips,
    make_skips,
    set_weights,
)
from proofs import assert_same, floats, get_weights

from keras_remat import recompute_all, restore

X, Y = floats(4, 6), floats(4, 2, seed=5)
CONVERSIONS = {
    "sqrt": {"strategy": "sqrt"},
    "every": {"strategy": "every"},
    "match": {"match": ["dense.*", "shared", "first"]},
}
MODELS = {"chain": make_chain, "skips": make_skips, "nested": make_nested}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
each_conversion = pytest.mark.parametrize("options", CONVERSIONS.values(), ids=CONVERSIONS)


def describe(target, model):
    """What users see of a model."""
    lines = []
    model.summary(print_fn=lambda *line, **_: lines.append(line[0]))
    return {
        "summary": lines,
        "layers": list(map(id, model.layers)),
        "types": [type(layer) for layer in model.layers],
        "found": [id(model.get_layer(layer.name)) for layer in model.layers],
        "weights": list(map(id, model.weights)),
        "names": list(map(target.name_of, model.weights)),
        "trainable": list(map(target.name_of, model.trainable_weights)),
        "others": list(map(target.name_of, model.non_trainable_weights)),
        "config": model.get_config(),
        "json": model.to_json(),
        "configs of layers": [layer.get_config() for layer in model.layers],
        "inputs": [(t.name, str(t.shape), t.dtype) for t in model.inputs],
        "outputs": [(str(t.shape), t.dtype) for t in model.outputs],
        "shapes": (model.input_shape, model.output_shape),
        "names of outputs": getattr(model, "output_names", None),
        "parameters": model.count_params(),
        "losses": len(model.losses),
        "updates": len(getattr(model, "updates", ())),
        "class": type(model),
        "name": model.name,
        "public": {name for name in dir(model) if not name.startswith("_")},
    }


@each_conversion
@each_model
def test_same_to_look_at(make, options, target):
    target.reset()
    model = make(Kit(target))
    before = describe(target, model)
    assert recompute_all(model, **options) is model
    assert describe(target, model) == before
    restore(model)
    assert describe(target, model) == before


def test_restore_leaves_nothing(target):
    target.reset()
    model = make_nested(Kit(target))
    before = {id(layer): sorted(vars(layer)) for layer in [model, *model.layers]}
    restore(recompute_all(model, strategy="every"))
    restore(recompute_all(model, match=".*"))
    for layer in [model, *model.layers]:
        assert [n for n in vars(layer) if "keras_remat" in n or n == "call"] == []
        assert set(before[id(layer)]) <= set(vars(layer))


@each_conversion
def test_clone_and_config_give_plain_models(options, target, keras):
    model = recompute_all(make_plain_skips(Kit(target)), **options)
    set_weights(model)
    for twin in (keras.models.clone_model(model), type(model).from_config(model.get_config())):
        assert not [n for n in vars(twin) if "keras_remat" in n]
        twin.set_weights(model.get_weights())
        assert_same("prediction", model.predict(X), twin.predict(X), 1e-6)


def test_freezing(target):
    """What is frozen after the conversion is frozen."""
    target.reset()
    model = cut(make_plain_skips(Kit(target)))
    set_weights(model)
    model.get_layer("dense_1").trainable = False
    model.compile(target.sgd(), "mse")
    before = {layer.name: layer.get_weights() for layer in model.layers}
    before = {name: [np.array(w) for w in weights] for name, weights in before.items()}
    model.fit(X, Y, verbose=0)
    frozen = set(map(id, model.get_layer("dense_1").weights))
    assert frozen and not frozen & set(map(id, model.trainable_weights))
    for layer in model.layers:
        kept = [np.array_equal(*pair) for pair in zip(before[layer.name], layer.get_weights())]
        assert not kept or all(kept) == (layer.name == "dense_1")


def same_predictions(target, one, other):
    assert_same("prediction", one.predict(X), other.predict(X), 1e-6)
    for pair in zip(get_weights(one), get_weights(other)):
        assert_same("weight", *pair)


@each_kind
@pytest.mark.parametrize("from_converted", [False, True])
@each_model
def test_weight_files(make, from_converted, kind, target, tmp_path):
    target.reset()
    source, other = make(Kit(target)), make(Kit(target))
    set_weights(source)
    cut(source if from_converted else other)
    kind.carry(source, other, tmp_path)
    same_predictions(target, source, other)


@pytest.mark.needs("saved models")
@pytest.mark.parametrize("from_converted", [False, True])
def test_checkpoints(from_converted, target, tmp_path):
    target.reset()
    source, other = make_nested(Kit(target)), make_nested(Kit(target))
    set_weights(source)
    recompute_all(source if from_converted else other, strategy="every")
    path = str(tmp_path / "weights")
    source.save_weights(path)
    other.load_weights(path)
    same_predictions(target, source, other)


def make_plain_chain(kit):
    return make_chain(kit, 2, rate=0)


FILES = {
    "chain.weights.h5": make_plain_chain,
    "nested.weights.h5": make_plain_nest,
    "chain.h5": make_plain_chain,
    "nested.h5": make_plain_nest,
}
SAVED = {"chain": make_plain_chain, "matched": make_concatenations}
KERAS_FILES = {"chain.keras": make_plain_chain, "nested.keras": make_plain_nest}


def save(target, folder, kind, make):
    """Save a plain model and a converted one that were trained alike."""
    for who in ("plain", "converted"):
        target.reset()
        model = make(Kit(target))
        set_weights(model)
        optimizer = target.keras.optimizers.SGD(learning_rate=0.1, momentum=0.9)
        if who == "converted":
            options = {"match": "dense.*"} if kind == "matched" else {"strategy": "sqrt"}
            recompute_all(model, **options)
        model.compile(optimizer, "mean_squared_error")  # Keras 3 does not find "mse" in HDF5 files
        model.fit(X, Y, epochs=2, shuffle=False, verbose=0)
        path = folder / f"{who}.{kind}"
        if "weights" in kind:
            model.save_weights(str(path))
            path.with_name(path.name + ".json").write_text(model.to_json())
        elif "." in kind:
            model.save(str(path))
        else:
            model.save(str(path), save_format="tf")


@pytest.fixture(scope="module")
def report(request, tmp_path_factory):
    """What a process without keras_remat finds in the files, by their name."""
    target, folder = request.config.target, tmp_path_factory.mktemp("files")
    np.savez(str(folder / "data.npz"), x=X, y=Y)
    kinds = dict(FILES)
    kinds.update(SAVED if target.has("saved models") else {})
    kinds.update(KERAS_FILES if target.has("keras files") else {})
    errors = {}
    for kind, make in kinds.items():
        try:
            save(target, folder, kind, make)
        except Exception as error:  # one that cannot be saved leaves the others to be looked at
            errors[kind] = repr(error)
    script = Path(__file__).with_name("plain_process.py")
    subprocess.run([sys.executable, str(script), target.name, str(folder)], check=True)
    found = json.loads((folder / "report").read_text())
    found.update(errors)
    return found


def check(report, kind):
    assert isinstance(report[kind], list), report[kind]
    plain, converted = report[kind]
    for what in ("layers", "class"):
        assert plain[what] == converted[what]
    for what in ("prediction", "losses", "weights"):
        assert_same(what, np.array(plain[what]), np.array(converted[what]), 1e-5)


@pytest.mark.parametrize("kind", FILES)
def test_files_load_without_us(kind, report):
    check(report, kind)


@pytest.mark.needs("saved models")
@pytest.mark.parametrize("kind", SAVED)
def test_saved_models_load_without_us(kind, report):
    check(report, kind)


@pytest.mark.needs("keras files")
@pytest.mark.parametrize("kind", KERAS_FILES)
def test_keras_files_load_without_us(kind, report):
    check(report, kind)


WHOLE = {".h5": "compiled HDF5 files", ".keras": "keras files"}


@pytest.mark.parametrize("suffix", [pytest.param(s, marks=pytest.mark.needs(n)) for s, n in WHOLE.items()])
def test_whole_files_load_with_us_as_plain_models(suffix, target, keras, tmp_path):
    target.reset()
    model = cut(make_plain_skips(Kit(target)))
    set_weights(model)
    model.compile(target.sgd(), "mse")
    model.fit(X, Y, verbose=0)
    path = str(tmp_path / "model") + suffix
    model.save(path)
    twin = keras.models.load_model(path)
    assert not [name for name in vars(twin) if "keras_remat" in name]
    same_predictions(target, model, twin)
    cut(twin)
    losses = [m.fit(X, Y, epochs=2, shuffle=False, verbose=0).history["loss"] for m in (model, twin)]
    assert_same("losses", *losses, tolerance=1e-5)
    same_after = [get_weights(m) for m in (model, twin)]
    for pair in zip(*same_after):
        assert_same("weight", *pair, tolerance=1e-5)
