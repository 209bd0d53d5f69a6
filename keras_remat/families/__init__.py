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
    root = root_of(layer)
    if root is not None:
        return family_at(root)
    raise UnsupportedFamilyError(
        f"Only layers and models of Keras can be recomputed. Received: {layer!r} of type "
        f"{type(layer).__name__}. Wrap the layer itself; for a plain function use `recompute_grad`."
    )


def root_of(value):
    """Return the package of the Keras that `value` is a layer of, such as `tf_keras.src`; None if of none."""
    for cls in type(value).__mro__:
        match = _BASE_LAYER.match(cls.__module__)
        if match and cls.__name__ == "Layer":
            return match.group(1)
    return None


def family_at(root):
    """Return the family of the Keras whose package is `root`, such as `tf_keras.src`."""
    key = root, _builds_graphs(root)
    if key not in _FAMILIES:
        _FAMILIES[key] = _load(*key)
    return _FAMILIES[key]


def _builds_graphs(root):
    """True if layers are called once, to build a graph: TensorFlow 1, or 2 without eager execution."""
    if root.startswith("keras") and _version(root) >= (3,):
        return False
    ops = importlib.import_module("tensorflow.python.framework.ops")  # public since TensorFlow 2.0 only
    return not ops.executing_eagerly_outside_functions()


def _version(root):
    package = sys.modules[root.split(".")[0]]
    return tuple(int(part) for part in re.findall(r"\d+", getattr(package, "__version__", "2"))[:2])


def _load(root, builds_graphs):
    version = _version(root)
    if root.startswith("keras") and version >= (3,):
        if version < (3, 3):
            raise UnsupportedFamilyError(
                f"Keras 3 is supported from 3.3 on. Received: a layer of Keras {version[0]}.{version[1]}. "
                "Update it: pip install 'keras>=3.3'."
            )
        return importlib.import_module("keras_remat.families.keras3").Keras3(root)
    if root.startswith("keras") and version < (2, 4):
        return importlib.import_module("keras_remat.families.keras2").Keras2(root)
    if builds_graphs:
        return importlib.import_module("keras_remat.families.tf_keras_graph").TFKerasGraph(root)
    return importlib.import_module("keras_remat.families.tf_keras").TFKeras(root)


def function_family(arguments):
    """Return the family of plain functions of such arguments: of the framework whose tensors they hold.

    Raises:
      UnsupportedFamilyError: if no framework is loaded whose functions can be recomputed.
    """
    name = _framework_of(arguments)
    if name == _keras3_backend() and name != "tensorflow":  # where `replay` knows random numbers by itself
        return family_at("keras.src")
    if name not in _FAMILIES:
        _FAMILIES[name] = importlib.import_module("keras_remat.families.functions").Functions(name)
    return _FAMILIES[name]


_TENSORS = {"tensorflow": "Tensor", "jax": "Array", "torch": "Tensor"}


def _framework_of(arguments):
    loaded = [name for name in _TENSORS if name in sys.modules]
    if not loaded:
        raise UnsupportedFamilyError(
            "recompute_grad decorates functions of tensors. Received: a call in a process where none of "
            f"{', '.join(_TENSORS)} is imported. Import one before the call."
        )
    kinds = {name: getattr(sys.modules[name], _TENSORS[name]) for name in loaded}
    for value in _leaves(arguments):
        for name, kind in kinds.items():
            if isinstance(value, kind):
                return name
    return _keras3_backend() if _keras3_backend() in loaded else loaded[0]


def _keras3_backend():
    """Return the name of the framework of the Keras 3 that is loaded, None if none is."""
    config = sys.modules.get("keras.src.backend.config")
    return config.backend() if config else None


def _leaves(values):
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value
