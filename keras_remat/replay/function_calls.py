"""Calls of `tf.function` in a block: their Python becomes part of it.

Not of those that XLA must compile, which may use what only XLA can, as the grouped convolutions of Keras on a
CPU do: they stay functions as long as a second call does what the first did. In graphs they are traced anew
as part of the block, which reads variables and draws seeds for them.
"""

import tensorflow as tf
from tensorflow.python.eager import def_function, function
from tensorflow.python.framework import ops

from keras_remat.replay import scope as scopes
from keras_remat.replay.autograph import converted_in_function
from keras_remat.replay.wrapping import in_block, is_eager_block, wrap


def _call_function(original, self, *args, **kwargs):
    """Run the Python of a `tf.function` in the block: a cached trace has random ops of its own."""
    if not in_block() or scopes.scopes()[-1].everywhere:
        return original(self, *args, **kwargs)
    python_function = self._python_function
    is_compiled, is_eager = getattr(self, "_jit_compile", None), is_eager_block()  # TensorFlow 2.5+
    if is_compiled and is_eager:
        compiled = _repeatable(self, args, kwargs)
        if compiled is not None:
            return original(compiled, *args, **kwargs)
    if self._autograph:
        python_function = converted_in_function(python_function)
    if is_compiled and not is_eager:
        return original(_own(python_function), *args, **kwargs)
    return python_function(*args, **kwargs)


def _repeatable(function, args, kwargs):
    """Return a compiled function whose call the second run may repeat; None if it draws or writes."""
    with scopes.suspended():
        graph = function.get_concrete_function(*args, **kwargs).graph
    stateful = {op.type for op in graph.get_operations() if op.op_def.is_stateful} - {"Placeholder"}
    if not stateful:
        return function
    if stateful == {"ReadVariableOp"}:  # a new trace reads variables as they are in this run
        return tf.function(function._python_function, autograph=function._autograph, jit_compile=True)
    return None


def _own(call):
    """Return the compiled function that runs `call` as part of the block in whose graph it is called."""
    scope = scopes.scopes()[-1]

    def run(*args, **kwargs):
        scope.functions.append(ops.get_default_graph())
        return call(*args, **kwargs)

    return tf.function(run, autograph=False, jit_compile=True)


def _with_values(original, self, *args, **kwargs):
    """Hand values of variables to a function, not their resources, which a second call might find changed.

    Up to TensorFlow 2.1 the recurrent layers of tf.keras hand their weights to one as variables, and register
    another for GPUs that must take the same.
    """
    if in_block() and not is_eager_block():
        args, kwargs = tf.nest.map_structure(_value, (args, kwargs))
    return original(self, *args, **kwargs)


def _value(argument):
    return tf.convert_to_tensor(argument) if isinstance(argument, tf.Variable) else argument


wrap(def_function.Function, "__call__", _call_function)
if hasattr(function, "Function"):  # up to TensorFlow 2.8, as `defun` makes them
    wrap(function.Function, "__call__", _with_values)
    wrap(function.Function, "get_concrete_function", _with_values)
