"""Which layers and models of a graph-building Keras are to be cut, and where that cuts the graph's ops.

What `convert` and `replaced.make_block` do only notes what is wanted: the graph is rebuilt when all is noted.
A model inside a model is cut by what was noted on it, in each of its calls.
"""

from typing import Any, List, NamedTuple

import tensorflow as tf

from keras_remat.errors import RematError
from keras_remat.families import replaced
from keras_remat.families.base import Segment
from keras_remat.replay import subgraph

_SEGMENTS = "_keras_remat_segments"  # on a model: its segments


class Part(NamedTuple):
    """Ops that compute consecutive calls.

    Attributes:
      is_repeated: True if they are in a block.
      blocks: for each block that ends with them, the position of the part that it begins with, inner first.
    """

    ops: List[Any]
    is_repeated: bool
    blocks: List[int]


def convert(model, segments):
    """Note that `model` is to run `segments`."""
    vars(model)[_SEGMENTS] = segments


def segments(model):
    """Return the segments that are noted on `model`, or None."""
    return vars(model).get(_SEGMENTS)


def restore(layer):
    """Undo `convert` and `replaced.make_block`."""
    vars(layer).pop(_SEGMENTS, None)
    replaced.restore_call(layer)


def is_converted(layer):
    """True if something is noted on `layer` itself."""
    return _SEGMENTS in vars(layer) or replaced.is_call_replaced(layer)


def is_to_be_cut(family, model):
    """True if something is noted on a model or on a layer in it."""
    return any(is_converted(layer) for layer in family.sublayers(model))


def parts(family, work, model):
    """List the parts of a model's graph; `work` is the rebuild that finds the ops."""
    found = []
    _add_parts(family, work, model, None, found)
    return found


def _add_parts(family, work, model, tensors, found):
    """Add the parts of one call of `model`: `tensors` maps keys to its tensors, None for the model's own."""
    for segment in _segments(family, model):
        layer = segment.calls[0].layer
        if not segment.is_block and family.is_model(layer) and is_to_be_cut(family, layer):
            outputs = _tensors_of(segment.calls[0], tensors)
            inside = family.tensors_inside(layer, work.peek([t.op for t in outputs]), outputs)
            if inside is None:
                raise RematError(
                    "The tensors that a model inside a model computes must be told apart by what Keras notes "
                    f"on them. Received: {layer.name!r} inside {model.name!r}, where they cannot. Leave it "
                    f"out with exclude={layer.name!r}, or wrap it with Recompute when you build the model."
                )
            _add_parts(family, work, layer, inside, found)
        _add_segment(work, segment, tensors, segment.is_block, found)


def _add_segment(work, segment, tensors, is_repeated, found):
    """Add the parts of a segment, those of the segments inside it by themselves."""
    first = len(found)
    for inner in segment.inside:
        _add_segment(work, inner, tensors, is_repeated, found)
    if not segment.inside:
        wanted = [t for call in segment.calls for t in _tensors_of(call, tensors)]
        wanted += [m for call in segment.calls for m in _masks_of(call)] if tensors is None else []
        found.append(Part(work.reach([t.op for t in wanted]), is_repeated, []))
    if segment.is_block:
        found[-1].blocks.append(first)


def _segments(family, model):
    if _SEGMENTS in vars(model):
        return vars(model)[_SEGMENTS]
    calls = family.calls(model)
    return [Segment((c,), c.inputs, c.outputs, replaced.is_call_replaced(c.layer)) for c in calls]


def _tensors_of(call, tensors):
    if tensors is None:
        return tf.nest.flatten(call.node.output_tensors)
    return [tensors[key] for key in call.outputs]


def _masks_of(call):
    masks = tf.nest.flatten(getattr(call.node, "output_masks", None))
    masks += [getattr(t, "_keras_mask", None) for t in tf.nest.flatten(call.node.output_tensors)]
    return [m for m in masks if isinstance(m, tf.Tensor)]


def marked_tensors(family, model, ops, outputs):
    """Find the tensors of one call of `model` by the shapes that Keras 2.3.1 notes on them, in order.

    Returns:
      dict from keys of the model's own tensors to those of this call; None if they cannot be told apart.
    """
    own = _own_tensors(family, model)
    put_out = dict(zip(family.output_keys(model), outputs))
    passed = [id(t) for key, t in put_out.items() if key not in own]  # copies of inputs
    marked = [t for op in ops for t in op.outputs if getattr(t, "_keras_shape", None) is not None]
    marked = [t for t in marked if id(t) not in passed]
    if len(marked) != len(own):
        return None
    if any(a.shape.ndims != b.shape.ndims or a.dtype != b.dtype for a, b in zip(marked, own.values())):
        return None
    found = dict(zip(own, marked))
    return found if all(found.get(key, t) is t for key, t in put_out.items()) else None


def _own_tensors(family, model):
    """What the calls in a model put out, by key, in the order in which it makes them."""
    found = {}
    for call in family.calls(model):
        for t in tf.nest.flatten(call.node.output_tensors):
            found.setdefault(subgraph.key(t), t)
    return found
