"""The examples in docstrings are right."""

import doctest
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def can_be_imported(path):
    """False for what belongs to a framework that is not installed."""
    name = path.stem.split("_")[0]
    is_framework = path.parent.name == "backends" and name not in ("", "base")
    # What was imported is there, though some TensorFlows then have no spec.
    return not is_framework or name in sys.modules or find_spec(name) is not None


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", "")
    for path in sorted((ROOT / "keras_remat").rglob("*.py"))
    if path.name != "__main__.py" and can_be_imported(path)
]


@pytest.mark.needs("doctests")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name, keras):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_public_names_have_examples():
    import keras_remat

    for name in keras_remat.__all__:
        thing = getattr(keras_remat, name)
        assert thing.__doc__, name
        if not (isinstance(thing, type) and issubclass(thing, Exception)):
            assert ">>>" in thing.__doc__, name
