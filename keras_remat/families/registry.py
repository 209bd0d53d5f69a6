"""Let `load_model` find the wrappers, in whatever order Keras and keras_remat are imported.

Keras looks classes up in a dict of its own. What is put there loads nothing until a file names it. A
Keras that is imported later gets its entries when the module that holds its dict has been executed.
"""

import importlib.machinery
import re
import sys

_HOLDER = re.compile(
    r"^(tensorflow\.python\.keras|tf_keras\.src|keras\.src|keras)"
    r"\.(utils\.generic_utils|saving\.object_registration)$"
)
NAMES = ("Recompute", "RecomputeSequential")


class _Loader:
    """Stands for a wrapper class of the Keras at `root` until a file needs it."""

    def __init__(self, root, name, find_classes):
        self._root, self._name, self._find_classes = root, name, find_classes

    def from_config(self, config, custom_objects=None):
        """Make the wrapper that `config` describes, in this Keras."""
        cls = self._find_classes(self._root)[NAMES.index(self._name)]
        return cls.from_config(config, custom_objects=custom_objects)


class _Watcher:
    """A finder that finds nothing by itself: it adds the entries to holders as they are imported."""

    def __init__(self, find_classes):
        self._find_classes = find_classes

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a holder, with a loader that registers; None for all other modules."""
        if not _HOLDER.match(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            register(module, self._find_classes)

        spec.loader.exec_module = exec_module
        return spec


def register(holder, find_classes):
    """Put the wrappers into the dict of classes that the module `holder` keeps."""
    root = _HOLDER.match(holder.__name__).group(1)
    objects = getattr(holder, "get_custom_objects", dict)()
    for name in NAMES:
        for entry in (name, "keras_remat>" + name):
            objects.setdefault(entry, _Loader(root, name, find_classes))


def replace(holder, cls):
    """Put `cls` itself in the place of its entries in the module `holder`."""
    objects = holder.get_custom_objects()
    objects[cls.__name__] = cls
    full_name = "keras_remat>" + cls.__name__
    objects.pop(full_name, None)
    if hasattr(holder, "register_keras_serializable"):
        holder.register_keras_serializable(package="keras_remat", name=cls.__name__)(cls)


def watch(find_classes):
    """Register with every Keras that is loaded, and with those that will be.

    `find_classes(root)` returns the wrapper classes of the Keras whose package is `root`.
    """
    for name, module in list(sys.modules.items()):
        if _HOLDER.match(name) and module is not None:
            register(module, find_classes)
    sys.meta_path.insert(0, _Watcher(find_classes))
