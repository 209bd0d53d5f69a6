"""How a pure block runs without keeping its residuals, one file a backend."""

import importlib
import sys


def load(name):
    """Return the backend module called `name`; it imports its framework."""
    return importlib.import_module("keras_remat.backends." + name)


def loaded():
    """List the backend modules that are in use."""
    names = ("tensorflow", "jax", "torch")
    modules = (sys.modules.get("keras_remat.backends." + name) for name in names)
    return [module for module in modules if module is not None]
