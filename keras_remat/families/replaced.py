"""Methods of a layer that are replaced on the instance: what makes it, or a model, recomputed in place."""

import types

from keras_remat.families.wrapping import as_method
from keras_remat.replay.marks import unconverted

_SEGMENTS = "_keras_remat_segments"  # on a function: (the model that it is for, what it runs)
_PLAIN = "_keras_remat_plain"  # on a layer: by name, what the instance had, None for methods of the class
# What `keras.RematScope` leaves on a layer: on JAX its checkpoint traces a method of an instance once for all
# and keeps the values that variables then had.
_MODE = "_remat_mode"


def replace_call(layer, call, name="call", segments=None):
    """Make the function `call` a method of `layer` alone: a method, as saving and copies expect.

    If the call runs `segments` of a model, they are noted on the function, which nothing copies or saves.
    """
    if segments is not None:
        setattr(call, _SEGMENTS, (layer, segments))
    method = types.MethodType(unconverted(as_method(call, getattr(layer, name))), layer)
    vars(layer).setdefault(_PLAIN, {})[name] = vars(layer).get(name)
    vars(layer)[name] = method  # not by attribute: Keras would track it
    if vars(layer).get(_MODE) is not None:
        vars(layer)[_PLAIN][_MODE], vars(layer)[_MODE] = vars(layer)[_MODE], None


def make_block(family, layer, runtime, name="call"):
    """Make every call of the method `name` of `layer` a block."""

    def call(self, *args, **kwargs):
        run = family.convertible(plain_call(self, name), self)
        return runtime.call(self.name, run, (self,), family, args, kwargs)

    replace_call(layer, call, name)


def is_call_replaced(layer):
    """True if `replace_call` gave `layer` its method."""
    return _PLAIN in vars(layer)


def segments_of(model):
    """Return the segments that the call of a model runs, None if it is the plain one, or that of a block."""
    owner, segments = getattr(vars(model).get("call"), _SEGMENTS, (None, None))
    return segments if owner is model else None  # a copy runs plainly


def plain_call(layer, name="call"):
    """Return the method that `replace_call` replaced."""
    return vars(layer)[_PLAIN][name] or getattr(type(layer), name).__get__(layer)


def restore_call(layer):
    """Undo `replace_call`, if it was done."""
    for name, before in vars(layer).pop(_PLAIN, {}).items():
        del vars(layer)[name]
        if before is not None:
            vars(layer)[name] = before
