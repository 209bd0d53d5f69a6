"""Losses from before a block that its code reads, in eager code.

They are tensors that a block finds elsewhere, so it would give them no gradient. Keras lists them when it is
asked, so no look at the block tells beforehand; the one who lists them is watched instead.
"""

import functools

from keras_remat.errors import RematError
from keras_remat.replay import tapes
from keras_remat.replay.scope import scopes
from keras_remat.replay.wrapping import is_eager_block


def refuse_earlier(cls, name):
    """Let the property or method `name` of `cls`, which lists losses, raise for those from before a block."""
    found = vars(cls)[name]
    is_property = isinstance(found, property)
    find = found.fget if is_property else found

    @functools.wraps(find)
    def checked(layer):
        losses = find(layer)
        if scopes() and is_eager_block() and tapes.is_recorded_outside(losses):
            raise RematError(
                "A block that is recomputed eagerly must take the tensors that it uses as arguments. "
                f"Received: one that reads losses which layer {layer.name!r} added before it. Pass them as "
                "arguments."
            )
        return losses

    setattr(cls, name, found.getter(checked) if is_property else checked)
