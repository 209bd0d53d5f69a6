"""Calls of `tf.function` in a block: their Python becomes part of it."""

from tensorflow.python.eager import def_function

from keras_remat.replay import scope as scopes
from keras_remat.replay.autograph import converted_in_function
from keras_remat.replay.wrapping import in_block, wrap


def _call_function(original, self, *args, **kwargs):
    """Run the Python of a `tf.function` in the block: a cached trace has random ops of its own."""
    if not in_block() or scopes.scopes()[-1].everywhere:
        return original(self, *args, **kwargs)
    python_function = self._python_function
    if self._autograph:
        python_function = converted_in_function(python_function)
    return python_function(*args, **kwargs)


wrap(def_function.Function, "__call__", _call_function)
