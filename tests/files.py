"""The kinds of files that weights go by from one model to another."""

from typing import Any, Callable, NamedTuple

import pytest


class Kind(NamedTuple):
    """A name that Keras takes for that kind, and how it is written and read."""

    name: str
    save: Callable[..., Any]
    options: Any = {}

    def carry(self, source, other, folder):
        """Give `other` the weights of `source` by a file in `folder`."""
        path = str(folder / self.name)
        self.save(source, path)
        other.load_weights(path, **self.options)


def _save(model, path):
    model.save(path)


def _save_weights(model, path):
    model.save_weights(path)


_KINDS = {
    "weights": (Kind("weights.h5", _save_weights), "keras 2"),
    "weights by name": (Kind("weights.h5", _save_weights, {"by_name": True}), "keras 2"),
    "weights of Keras 3": (Kind("model.weights.h5", _save_weights), "keras 3"),
    "model": (Kind("model.h5", _save), None),
    "model by name": (Kind("model.h5", _save, {"by_name": True}), None),
}

each_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=[pytest.mark.needs(feature)] if feature else [])
        for name, (kind, feature) in _KINDS.items()
    ],
)
