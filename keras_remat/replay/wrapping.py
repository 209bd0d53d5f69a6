"""Wrap TensorFlow's functions once: the wrappers do nothing unless a scope is open on the thread.

Names of generated op functions are the same from TensorFlow 1.14 to 2.21 as far as a version has the op;
those it lacks are passed over.
"""

import functools

from tensorflow.python.eager import context

from keras_remat.replay import scope as scopes
from keras_remat.replay.graphs import block_graph


def wrap(module, name, replacement):
    """Replace `module.name` by `replacement(original, *args, **kwargs)` while a scope is open."""
    original = getattr(module, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        if not scopes.scopes():
            return original(*args, **kwargs)
        return replacement(original, *args, **kwargs)

    setattr(module, name, wrapper)


def is_eager_block():
    """True in the eager code of an eager block (not in a function that it happens to trace)."""
    return context.executing_eagerly() and scopes.scopes()[-1].graph is None


def in_block():
    """True in code that is part of a block, or of a branch or loop in it."""
    return is_eager_block() or (not context.executing_eagerly() and block_graph() is not None)


def kept(original, *args, **kwargs):
    """Run what cannot be made again once: in an eager block its result is noted and given again.

    In graph mode nothing is to do: results of stateful ops are kept by `subgraph`.
    """
    if not is_eager_block():
        return original(*args, **kwargs)
    return scopes.noted(original.__name__, lambda: original(*args, **kwargs))


def outside(original, *args, **kwargs):
    """Run what is no part of a block, such as the initializer of a new weight, as if none were open."""
    with scopes.suspended():
        return original(*args, **kwargs)
