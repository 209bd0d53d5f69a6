"""JAX: `jax.checkpoint` of the block's pure function, traced once for calls that are alike."""

import jax
from jax._src import core

from keras_remat.backends import jax_calls
from keras_remat.backends.base import (  # noqa: F401
    check_captured,
    convertible,
    keep_outside,
    marked,
    marks,
    modules,
    watch_losses,
)
from keras_remat.backends.jax_trees import flatten, pack  # noqa: F401

#: Everything that a block reads is an input, so that one trace serves many calls.
REPLAYS_VARIABLES = False
VARIABLES_ARE_INPUTS = True
#: True if tensors in objects which `flatten` does not look into are outputs of a block all the same.
FOLLOWS_OBJECTS = False


def is_replaying():
    """False: what runs again is the trace of a block, in which no Python runs."""
    return False


def may_differentiate(is_inference):
    """True inside of any transformation: what is computed outside of all has no gradient."""
    return not core.trace_state_clean()


def run(call, variables, name):
    """Run `call` (see `pure`), to be run again for its gradient; return it and its results."""
    call, results = jax_calls.run(call)
    return call, list(results)


def is_tensor(value):
    """True for arrays of JAX, traced or not."""
    return isinstance(value, jax.Array)


def assigned(value, variable):
    """Return `value` as a variable has it after an assignment."""
    return value


def version(value):
    """Return nothing: arrays are never written in place."""


def copied(value):
    """Return `value`: arrays are never written in place."""
    return value
