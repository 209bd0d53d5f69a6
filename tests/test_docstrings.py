"""The examples in docstrings are right."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).replace(".__init__", "")
    for path in sorted((ROOT / "keras_remat").rglob("*.py"))
    if path.name != "__main__.py"
]


@pytest.mark.needs("doctests")
@pytest.mark.parametrize("name", MODULES)
def test_examples(name, keras):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.fail(str(error)) if "keras_remat" in str(error) else pytest.skip(str(error))
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_public_names_have_examples():
    import keras_remat

    for name in keras_remat.__all__:
        thing = getattr(keras_remat, name)
        assert thing.__doc__, name
        if not (isinstance(thing, type) and issubclass(thing, Exception)):
            assert ">>>" in thing.__doc__, name
