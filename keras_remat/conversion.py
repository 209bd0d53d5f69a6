"""Blocks of a model, put into it and taken out again."""

import contextlib

from keras_remat import graph
from keras_remat.layers import RUNTIME


def apply(family, cut):
    """Convert the model of a `models.Cut`, and those inside of it that have blocks of their own."""
    for inner in cut.inner.values():
        if not family.is_converted(inner.part.model):
            apply(family, inner)
    part = cut.part
    family.convert(part.model, graph.segments(part.calls, part.outputs, cut.blocks), RUNTIME)


def undo(family, model):
    """Make a model and all layers inside it plain again."""
    converted = [layer for layer in family.sublayers(model) if family.is_converted(layer)]
    for layer in converted:
        family.restore(layer)
    if converted:
        family.forget_functions(model)


@contextlib.contextmanager
def plain(family, model):
    """Context manager: a model without its blocks, which it has again afterwards."""
    converted = [(x, family.segments(x)) for x in family.sublayers(model) if family.is_converted(x)]
    undo(family, model)
    try:
        yield
    finally:
        for layer, segments in reversed(converted):  # inner ones first, as they were converted
            if segments is None:
                family.convert_layer(layer, RUNTIME)
            else:
                family.convert(layer, segments, RUNTIME)
        if converted:
            family.forget_functions(model)
