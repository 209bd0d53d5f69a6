"""The decorator for a layer's `call`, or for any function of tensors."""

import functools
import inspect
import logging
import types

from keras_remat import engine
from keras_remat.errors import RematError, UnsupportedFamilyError
from keras_remat.families import family_of, function_family, root_of
from keras_remat.families.wrapping import with_signature_of
from keras_remat.pure import Block
from keras_remat.replay.captured import captured, reached
from keras_remat.replay.marks import unconverted

_LOGGER = logging.getLogger("keras_remat")
_TOLD = []


@unconverted
def recompute_grad(call=None, *, enabled=None):
    """Decorates the `call` of a layer, or a function of tensors, to keep only its inputs for backward.

    Used bare or with options. The decorated function keeps its signature, takes any arguments, and
    gives the same numbers and gradients as without. As in bert4keras, where it comes from, it does
    nothing unless it is switched on, by `RECOMPUTE=1` in the environment, by
    `recompute_enabled(True)` or by `enabled=True`. It does not help a layer that keeps little besides
    its inputs.

    Args:
      call: a method `call` of a layer, or a function whose tensors come in as arguments. Layers that
        it calls are found through the layer, or where the function itself finds them.
      enabled: bool, to switch it on or off here whatever the environment says; None for the
        environment's word.

    Returns:
      The decorated function, or a decorator if `call` is not given.

    Raises:
      RematError: if `call` is not a function, or `enabled` not a bool or None.

    Example:
        >>> import tensorflow as tf
        >>> from keras_remat import recompute_grad
        >>> @recompute_grad(enabled=True)
        ... def block(x, w):
        ...     return tf.tanh(tf.matmul(x, w))
        >>> block(tf.ones((2, 3)), tf.ones((3, 4))).shape
        TensorShape([2, 4])
    """
    if enabled not in (None, True, False):
        raise RematError(
            f"`enabled` must be True, False or None. Received: enabled={enabled!r}. Leave it out to let the "
            "environment variable RECOMPUTE decide."
        )
    if call is None:
        return unconverted(lambda call: recompute_grad(call, enabled=enabled))
    if not callable(call) or isinstance(call, type) or hasattr(call, "get_config"):
        raise RematError(
            f"recompute_grad decorates a function or a method `call`. Received: {call!r}. Wrap a layer with "
            "Recompute."
        )

    @functools.wraps(call)
    def decorated(*args, **kwargs):
        owner, rest = _owner(call, args)
        on = _is_on(enabled)
        block = _block(call, owner, (rest, kwargs))
        if on and any(type(x).__name__ == "KerasTensor" for x in (*rest, *kwargs.values())):
            raise RematError(
                "A decorated function takes tensors, not the symbolic inputs of a model. Received: a call of "
                f"{block.name!r} on a keras.Input. Make its layers a block with Recompute or "
                "RecomputeSequential."
            )
        if on and block.family.may_differentiate():
            return engine.run(block, rest, kwargs)
        return block.run(*rest, **kwargs)

    return unconverted(with_signature_of(decorated, call) if _signature(call) else decorated)


def _is_on(enabled):
    on = engine.is_enabled(own=enabled, default=False)
    if not on and enabled is None and not _TOLD:
        _TOLD.append(True)
        _LOGGER.info("recompute_grad is off; RECOMPUTE=1 in the environment switches it on.")
    return on


def _signature(call):
    try:
        return inspect.signature(call)
    except ValueError:  # functions of PyTorch that are not Python have none
        return None


def _owner(call, args):
    """Return the object whose method `call` is, or None, and the arguments after it."""
    signature = _signature(call)
    if signature and list(signature.parameters)[:1] == ["self"] and args:
        return args[0], args[1:]
    return getattr(call, "__self__", None), args


def _block(call, owner, arguments):
    found = reached([owner, *captured(call)], _is_layer)
    layers = list(filter(_is_layer, found))
    family = family_of(layers[0]) if layers else function_family(arguments)
    if owner is not None and not hasattr(call, "__self__"):
        call = types.MethodType(call, owner)
    name = getattr(owner, "name", None) or getattr(call, "__name__", "function")
    return Block(name, family.convertible(call, owner), layers, family, family.backend.modules(found))


def _is_layer(value):
    if root_of(value) is None:  # most are none, and an error would spell each of them out
        return False
    try:
        family_of(value)
    except UnsupportedFamilyError:
        return False
    return True
