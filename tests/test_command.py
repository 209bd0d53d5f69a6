"""The command line: it loads files of the Keras that is installed, and says what is wrong with its input."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from models import Kit, make_chain, make_skips

from keras_remat import Plan, plan, recompute_all
from keras_remat.__main__ import main
from keras_remat.planning.tables import size

ROOT = Path(__file__).resolve().parent.parent

OWN_LAYER = """
from {module} import layers

class Doubled(layers.Layer):
    def call(self, inputs):
        return inputs * 2.0 * inputs
"""


def run(folder, *arguments):
    """Exit status and output of the command, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "keras_remat", *arguments],
        cwd=str(folder),
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def name(target):
    return "model.keras" if target.has("keras files") else "model.h5"


def test_a_plan_of_a_file(target, name, tmp_path):
    model = make_chain(Kit(target), 16)
    model.save(str(tmp_path / name))
    expected = plan(model, strategy="sqrt", batch_size=64)
    status, output, errors = run(
        tmp_path, "plan", name, "--batch-size", "64", "--strategy", "sqrt", "--json", "plan.json"
    )
    assert status == 0, errors
    assert f"batch size 64: {size(expected.peak_bytes)} instead of {size(expected.baseline_bytes)}" in output
    read = Plan.from_json((tmp_path / "plan.json").read_text())
    assert [row.calls for row in read.rows] == [row.calls for row in expected.rows]
    recompute_all(model, strategy=read)


@pytest.mark.needs("matplotlib")
def test_a_budget_shape_and_picture(target, tmp_path):
    make_skips(Kit(target)).save(str(tmp_path / "model.h5"))
    asked = ["plan", "model.h5", "--input-shape", "100,6", "--budget"]
    status, output, errors = run(tmp_path, *asked, "1MB", "--plot", "plan.png")
    assert status == 0, errors
    assert "batch size 100" in output or "recompute" not in output
    assert (tmp_path / "plan.png").read_bytes()[1:4] == b"PNG"
    status, output, errors = run(tmp_path, *asked, "10B")
    assert status == 2 and not output
    assert "must fit the memory budget. Received: 10 bytes" in errors and "Traceback" not in errors


def test_layers_of_a_module(target, name, tmp_path, monkeypatch):
    keras = target.keras
    saved, loaded = tmp_path / "saved", tmp_path / "loaded"
    public = "tensorflow.keras" if target.name.startswith("tf.") else target.name.split("3")[0]
    for folder, module in ((saved, "own_layers"), (loaded, "moved_layers")):  # where Keras does not look
        folder.mkdir()
        (folder / (module + ".py")).write_text(OWN_LAYER.format(module=public))
    monkeypatch.syspath_prepend(str(saved))
    own = importlib.import_module("own_layers")
    layers = [keras.layers.Dense(6, input_shape=(6,)), own.Doubled(name="own")]
    keras.Sequential(layers).save(str(loaded / name))
    monkeypatch.delitem(sys.modules, "own_layers")
    status, output, errors = run(loaded, "plan", name)
    assert status == 2 and "Doubled" in errors and "Traceback" not in errors
    status, output, errors = run(loaded, "plan", name, "--import", "moved_layers")
    assert status == 0 and "own" in output, errors


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["plan", "nothing.keras"], "Received: 'nothing.keras', which does not exist"),
        (["plan", "."], "Received: '.', which is no such file"),
        (["plan", __file__], "which is no such file"),
        (["plan", "empty.h5", "--import", "no.such.module"], "Received: 'no.such.module'"),
        (["plan", "empty.h5", "--input-shape", "big"], "Received: 'big'"),
        (["plan", "empty.h5", "--batch-size", "some"], "invalid int value: 'some'"),
        ([], "COMMAND"),
    ],
)
def test_wrong_input(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.h5").write_bytes(b"")
    try:
        status = main(arguments)
    except SystemExit as exit:
        status = exit.code
    assert status == 2
    assert message in capsys.readouterr().err


def test_a_file_of_no_model(tmp_path):
    (tmp_path / "empty.h5").write_bytes(b"")
    status, output, errors = run(tmp_path, "plan", "empty.h5")
    assert status == 2 and not output
    assert "A model is read by a Keras that is installed. Received: 'empty.h5'" in errors
    assert "Traceback" not in errors
