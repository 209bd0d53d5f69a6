"""Load a model from a file with whichever Keras is installed and can read it."""

import importlib
import os

from keras_remat.errors import RematError

_KERASES = ("keras", "tf_keras", "tensorflow.keras")  # the order in which they are tried
_ENDINGS = (".keras", ".h5", ".hdf5")


def load_model(path, modules=()):
    """Return the model that a file holds, not compiled, as one of the first Keras that can read it.

    Args:
      path: a `.keras` or `.h5` file.
      modules: names of modules to import first. What they define is known to Keras by its name.

    Raises:
      RematError: if there is no such file or module, or no Keras reads the file.
    """
    if not str(path).endswith(_ENDINGS) or not os.path.isfile(str(path)):
        raise RematError(
            f"A model is read from a file that ends with {', '.join(_ENDINGS)}. Received: {str(path)!r}, "
            f"which {'is no such file' if os.path.exists(str(path)) else 'does not exist'}. Save the model "
            "with model.save(path)."
        )
    known = _defined(modules)
    loaders, failures = [], []
    for name in _KERASES:
        try:
            load = importlib.import_module(name).models.load_model
            if load in loaders:  # since TensorFlow 2.16 its Keras is Keras 3
                continue
            loaders.append(load)
            return load(str(path), custom_objects=known, compile=False)
        except Exception as error:  # of any kind; the next may read the file, and if none does, all are told
            if getattr(error, "name", None) != name.partition(".")[0]:  # else it is not installed
                failures.append(f"{name}: {type(error).__name__}: {_shortened(error)}")
    raise RematError(
        f"A model is read by a Keras that is installed. Received: {str(path)!r} "
        f"({'; '.join(failures) or 'no Keras is installed'}). Install the Keras that wrote it, and name the "
        "modules of its own layers."
    )


def _defined(modules):
    """Import modules; return the classes and functions that they define, by their names."""
    found = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise RematError(
                f"Modules with layers of your own must be importable. Received: {name!r} ({error}). Run in "
                "the folder that holds it, or set PYTHONPATH."
            ) from error
        for key, value in vars(module).items():
            if callable(value) and getattr(value, "__module__", None) == module.__name__:
                found[key] = value
    return found


def _shortened(error):
    """The first and the last line of a message: what failed, and often why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    parts = lines[:1] + lines[1:][-1:]
    return " ... ".join(part if len(part) <= 160 else part[:157] + "..." for part in parts)
