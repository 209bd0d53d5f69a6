"""What a callback measures is in the logs of every Keras, and where nothing can be measured it says so."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import Kit, make_chain

from keras_remat import RematError, UnsupportedFamilyError, memory_callback
from keras_remat.families import family_of

ROOT = Path(__file__).resolve().parent.parent
X, Y = np.zeros((8, 6), "float32"), np.zeros((8, 2), "float32")

MEASURED = """
import numpy as np, targets
keras = targets.load({name!r}).keras
from keras_remat import memory_callback

peaks = []
for batch_size in (64, 4096):
    layers = [keras.layers.Dense(256, "tanh") for _ in range(4)]
    model = keras.Sequential([keras.layers.InputLayer((256,)), *layers])
    model.compile("sgd", "mse")
    x = np.zeros((4096, 256), "float32")
    history = model.fit(x, x, batch_size, epochs=2, verbose=0, callbacks=[memory_callback(model)])
    peaks.append(history.history["peak_memory_bytes"])
assert all(len(peak) == 2 for peak in peaks), peaks
assert peaks[1][0] - peaks[0][0] > 4 * 256 * 4032, peaks  # what one layer puts out
print("measured")
"""


class Meter:
    """Stands for a device that can be measured: each epoch takes more than the one before."""

    def __init__(self):
        self.resets = 0

    def check(self):
        pass

    def reset(self):
        self.resets += 1

    def peak(self):
        return 1000 * self.resets


def test_logs(target, keras, monkeypatch):
    model = make_chain(Kit(target), rate=0)
    model.compile(target.sgd(), "mse")
    meter, seen = Meter(), []
    monkeypatch.setattr(type(family_of(model)), "memory", lambda self: meter, raising=False)
    callback = memory_callback(model)
    assert isinstance(callback, keras.callbacks.Callback)
    later = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["peak_memory_bytes"])
    )
    history = model.fit(X, Y, epochs=3, verbose=0, callbacks=[callback, later]).history
    assert history["peak_memory_bytes"] == seen == [1000, 2000, 3000]
    assert len(history["loss"]) == 3


def test_where_nothing_can_be_measured(target):
    model = make_chain(Kit(target))
    with pytest.raises(RematError, match="Peaks are measured .*Received: "):
        memory_callback(model)


def test_of_no_model():
    with pytest.raises(UnsupportedFamilyError):
        memory_callback("model")


@pytest.mark.needs("counting allocators")
def test_measured_on_a_cpu(target, tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", MEASURED.format(name=target.name)],
        cwd=str(tmp_path),
        env=dict(os.environ, PYTHONPATH=path, TF_CPU_ALLOCATOR_USE_BFC="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0 and b"measured" in done.stdout, done.stdout.decode()
