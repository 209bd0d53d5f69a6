"""Which Keras an object belongs to, asked of the object itself.

A family answers everything that differs between Kerases. It is found from the classes an object is
made of, so two Kerases can live in one process, and nothing is imported that the user has not
imported already.
"""

import importlib
import re
import sys

from keras_remat.errors import UnsupportedFamilyError

_BASE_LAYER = re.compile(r"^(tensorflow\.python\.keras|tf_keras(?:\.src)?|keras(?:\.src)?)\.")
_FAMILIES = {}


def family_of(layer):
    """Return the family of a layer or model.

    Raises:
      UnsupportedFamilyError: if `layer` is no layer, or one of a Keras that is not supported.
    """
    for cls in type(layer).__mro__:
        match = _BASE_LAYER.match(cls.__module__)
        if match and cls.__name__ == "Layer":
            return family_at(match.group(1))
    raise UnsupportedFamilyError(
        f"Only layers and models of Keras can be recomputed. Received: {layer!r} of type "
        f"{type(layer).__name__}. "
        "Wrap the layer itself; for a plain function use `recompute_grad`."
    )


def family_at(root):
    """Return the family of the Keras whose package is `root`, such as `tf_keras.src`."""
    if root not in _FAMILIES:
        _FAMILIES[root] = _load(root)
    return _FAMILIES[root]


def _load(root):
    package = sys.modules[root.split(".")[0]]
    version = tuple(int(part) for part in re.findall(r"\d+", getattr(package, "__version__", "2"))[:2])
    if root.startswith("keras") and version >= (3,):
        raise UnsupportedFamilyError(
            f"Keras 3 is not supported yet. Received: a layer of Keras {package.__version__}. Use tf_keras "
            "(set "
            "TF_USE_LEGACY_KERAS=1 before importing TensorFlow)."
        )
    if root.startswith("keras") and version < (2, 4):
        return importlib.import_module("keras_remat.families.keras2").Keras2(root)
    return importlib.import_module("keras_remat.families.tf_keras").TFKeras(root)


def function_family():
    """Return the family of plain functions of tensors.

    Raises:
      UnsupportedFamilyError: if no framework is loaded whose functions can be recomputed.
    """
    if "tensorflow" not in sys.modules:
        raise UnsupportedFamilyError(
            "recompute_grad decorates functions of TensorFlow tensors. Received: a call in a process where "
            "TensorFlow is not imported. Import it before the call."
        )
    if None not in _FAMILIES:
        _FAMILIES[None] = importlib.import_module("keras_remat.families.functions").Functions()
    return _FAMILIES[None]
