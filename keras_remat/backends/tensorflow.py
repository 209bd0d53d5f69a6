"""TensorFlow: eager blocks run twice, blocks in graphs are copied by their gradient."""

import tensorflow as tf
from tensorflow.python.framework import func_graph

from keras_remat.backends.base import modules  # noqa: F401
from keras_remat.errors import RematError
from keras_remat.replay import autograph, eager, function_calls, graph, losses, variable_ops, vectorized  # noqa: F401  they wrap functions
from keras_remat.replay import scope as scopes
from keras_remat.replay.captured import captured, leaves_of
from keras_remat.replay.random_ops import recording  # noqa: F401
from keras_remat.replay.tapes import should_record, tape_lib
from keras_remat.replay.wrapping import outside, wrap

#: `replay` gives the second run the entry values of variables; values that a scope of Keras 3 has for them
#: are inputs of a block like any tensor.
REPLAYS_VARIABLES = True
VARIABLES_ARE_INPUTS = True
#: True if tensors in objects which `flatten` does not look into are outputs of a block all the same.
FOLLOWS_OBJECTS = False

try:  # its own module in later versions of TensorFlow 2
    from tensorflow.python.ops.ref_variable import RefVariable
except ImportError:
    from tensorflow.python.ops.variables import RefVariable


def may_differentiate(is_inference):
    """True if a gradient may be asked of what is computed now.

    Eagerly, a tape tells. A graph of TensorFlow 1 may be differentiated at any time; so may a
    `tf.function`, after it was traced, unless it was traced for inference (`is_inference`).
    """
    if tape_lib.could_possibly_record():
        return True
    if tf.executing_eagerly():
        return False
    return not (is_inference and isinstance(tf.compat.v1.get_default_graph(), func_graph.FuncGraph))


def check_captured(name, find):
    """Raise if an eager block finds a tensor elsewhere than in its arguments that has a gradient.

    `find()` returns the block's functions, which may hold one in a closure or global variable, and what its
    layers hold. In graph mode it is found in the graph.
    """
    if not tf.executing_eagerly():
        return
    functions, held = find()
    values = [value for function in functions for value in captured(function)]
    values += leaves_of(held)
    for value in values:
        if is_tensor(value) and should_record([value]):
            raise RematError(
                "A block that is recomputed eagerly must take the tensors that it uses as arguments. "
                f"Received: block {name!r} that finds a tensor of shape {value.shape} elsewhere. Pass the "
                "tensor as an argument."
            )


def run(call, variables, name):
    """Run `call` (see `pure`), to be run again for its gradient; return it and its results."""
    if tf.executing_eagerly():
        return call, eager.run(call, call.tensors, variables, name)
    return call, graph.run(lambda: call(call.tensors), call.tensors)


is_replaying = scopes.is_replaying


def flatten(structure):
    """List the leaves of nested lists, tuples, dicts and composite tensors; return what packs them too."""
    return tf.nest.flatten(structure, expand_composites=True), structure


def pack(structure, leaves):
    """Put `leaves` in the places of those of `structure`."""
    return tf.nest.pack_sequence_as(structure, leaves, expand_composites=True)


def is_tensor(value):
    """True for tensors, symbolic or not; False for variables and everything else."""
    return isinstance(value, tf.Tensor)


_MARKS = ("_keras_mask", "_keras_shape", "_uses_learning_phase")


def marks(tensor):
    """Return the marks that Keras keeps on a tensor."""
    return {name: getattr(tensor, name) for name in _MARKS if hasattr(tensor, name)}


def marked(tensor, found):
    """Give `tensor` marks, and return it."""
    for name, value in found.items():
        setattr(tensor, name, value)
    return tensor


def trained_references(variables):
    """List the values of those variables that are trained and that no tape knows: of version 1 graphs."""
    return [v.value() for v in variables if isinstance(v, RefVariable) and v.trainable]


def assigned(value, variable):
    """Return `value` as a variable has it after an assignment, through which no gradient passes."""
    return tf.stop_gradient(value)


def version(value):
    """Return nothing: `replay` gives the second run what variables were."""


def copied(value):
    """Return `value`: only variables are written in place, which `replay` looks after."""
    return value


def convertible(function):
    """Return `function` as AutoGraph would call it here."""
    return function if tf.executing_eagerly() else autograph.converted(function)


def watch_losses(cls, name):
    """Let the property or method `name` of `cls` list no losses to a block that had no gradient in it."""
    losses.refuse_earlier(cls, name)


def keep_outside(cls, name):
    """Let what the method `name` of `cls` does be no part of a block."""
    wrap(cls, name, outside)
