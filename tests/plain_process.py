"""Loads files of a plain model and of a converted one where keras_remat cannot be imported.

`python plain_process.py TARGET FOLDER` compares every `converted.NAME` in the folder with `plain.NAME`:
both are loaded, predict and are trained on. What was found is written as JSON to `report`.
"""

import json
import sys
import traceback
from pathlib import Path

import numpy as np
import targets

sys.modules["keras_remat"] = None  # from here on, importing it raises ImportError


def load(target, path):
    """A whole model; or one from the configuration beside a file of weights."""
    keras = target.keras
    config = path.with_name(path.name + ".json")
    if not config.exists():
        model = keras.models.load_model(str(path))
        if path.suffix == ".h5" and not target.has("compiled HDF5 files"):
            model.compile("sgd", "mse")
        return model
    model = keras.models.model_from_json(config.read_text())
    model.load_weights(str(path))
    model.compile("sgd", "mse")
    return model


def look_at(target, path, x, y):
    """What a model is, predicts, and becomes when it is trained on."""
    target.reset()
    model = load(target, path)
    found = {"layers": [layer.name for layer in model.layers], "class": type(model).__name__}
    found["prediction"] = model.predict(x).tolist()
    history = model.fit(x, y, epochs=2, shuffle=False, verbose=0).history
    found["losses"] = [float(loss) for loss in history["loss"]]
    found["weights"] = [np.sum(np.abs(weight)).item() for weight in model.get_weights()]
    return found


def main(name, folder):
    target = targets.load(name)
    data = np.load(str(folder / "data.npz"))
    report = {}
    for path in sorted(folder.glob("plain.*")):
        if path.suffix == ".json":
            continue
        kind = path.name.partition(".")[2]
        try:
            pair = [folder / f"{who}.{kind}" for who in ("plain", "converted")]
            report[kind] = [look_at(target, one, data["x"], data["y"]) for one in pair]
        except Exception:  # whatever a file does is reported
            report[kind] = traceback.format_exc()
    (folder / "report").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
