"""Run a block so that only its inputs are kept for the backward pass; the switch that turns this off.

The engine makes a block's call a function of tensors alone (see `pure`) and gives it to the backend.
"""

import contextlib
import functools
import os
import threading

from keras_remat.errors import RematError
from keras_remat.pure import Pure
from keras_remat.replay.marks import unconverted


class _Switch(threading.local):
    def __init__(self):
        self.flags = []


_SWITCH = _Switch()
_VARIABLE = "RECOMPUTE"


@unconverted
@contextlib.contextmanager
def recompute_enabled(flag):
    """Switch recomputation on or off in this thread while the context is open.

    Outside of it the environment variable `RECOMPUTE` decides, read at call time: `0` switches
    everything off, `1` everything on; unset, wrappers and converted models are on and the decorator
    is off.

    Args:
      flag: bool, True to recompute and False to run blocks as if they were not wrapped.

    Raises:
      RematError: if `flag` is not a bool.

    Example:
        >>> import keras_remat
        >>> with keras_remat.recompute_enabled(False):
        ...     pass  # models called here keep all their activations
    """
    if not isinstance(flag, bool):
        raise RematError(f"recompute_enabled takes True or False. Received: {flag!r}. Pass bool(...) of it.")
    _SWITCH.flags.append(flag)
    try:
        yield
    finally:
        _SWITCH.flags.pop()


def is_enabled(own=None, default=True):
    """Tell whether blocks are to be recomputed.

    The innermost `recompute_enabled` decides; then the environment variable, if it says 0; then the
    block's `own` word (a bool, if it has one); then the variable, if it says 1; then `default`.
    """
    if _SWITCH.flags:
        return _SWITCH.flags[-1]
    value = os.environ.get(_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise RematError(
            f"The environment variable RECOMPUTE must be 0 or 1. Received: {value!r}. Set it to one of "
            "these, or unset it."
        )
    if value == "0":
        return False
    if own is not None:
        return own
    return default or value == "1"


@contextlib.contextmanager
def _switched(flags):
    """Let the switch be what it was: a gradient may be taken in another context, or another thread."""
    before, _SWITCH.flags = _SWITCH.flags, list(flags)
    try:
        yield
    finally:
        _SWITCH.flags = before


def is_on(family):
    """True if blocks of `family` would be recomputed now: switched on, and a gradient may be asked for."""
    return is_enabled() and family.may_differentiate()


@unconverted
def is_recomputing():
    """True while a block is being run again for its gradient.

    For counters and other side effects in a layer's `call` that must happen once a step. In graph
    mode no Python runs in the second run, so there it is never True.

    Example:
        >>> import keras_remat
        >>> keras_remat.is_recomputing()
        False
    """
    from keras_remat.backends import loaded

    return any(backend.is_replaying() for backend in loaded())


def call(block, args, kwargs):
    """Run `block` with the given arguments; recompute it if that is on and a gradient may be asked for."""
    return run(block, args, kwargs) if is_on(block.family) else block.run(*args, **kwargs)


def run(block, args, kwargs):
    """Run `block` so that it is computed again for its gradient, and only its inputs are kept."""
    family, backend = block.family, block.family.backend
    backend.check_captured(block.name, lambda: _held(block))
    call = Pure(block, args, kwargs, functools.partial(_switched, list(_SWITCH.flags)))
    call, results = backend.run(call, lambda: family.variables(block.layers), block.name)
    return call.finish(results)


def _held(block):
    """Return the functions that a block runs, and what its layers hold, losses left out."""
    family = block.family
    inner = family.all_sublayers(block.layers)
    functions = [block.run]
    functions += [x.function for x in inner if hasattr(x, "function")]  # of Lambda layers
    functions += [x.call for x in inner if not family.is_own_class(x)]
    lists = {id(losses) for layer in inner for losses in family.loss_lists(layer)}
    return functions, [x for layer in inner for x in vars(layer).values() if id(x) not in lists]
