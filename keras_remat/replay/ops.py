"""The wrapped ops: random numbers, reads and writes of variables, calls of `tf.function`.

Names of generated op functions are the same from TensorFlow 1.14 to 2.21 as far as a version has
the op; those it lacks are passed over. Wrappers are installed when this module is first imported.
"""

import contextlib
import functools

import tensorflow as tf
from tensorflow.python.eager import context, def_function
from tensorflow.python.framework import dtypes, ops, random_seed
from tensorflow.python.ops import (
    gen_random_ops,
    gen_resource_variable_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
)

from keras_remat.errors import RematError
from keras_remat.replay import control_flow
from keras_remat.replay import scope as scopes
from keras_remat.replay.autograph import converted
from keras_remat.replay.graphs import block_graph, in_loop, iterations


@contextlib.contextmanager
def recording():
    """Make random ops stateless as inside a block, and do nothing else.

    A plain model that runs under it draws the same numbers as the recomputed model under the same
    seeds: the reference of the tests.
    """
    with scopes.opened(scopes.Scope(None, everywhere=True)) as scope:
        scope.log = _Nothing()
        yield


class _Nothing:
    """A log that keeps nothing: there will be no replay."""

    def append(self, item):
        """Drop `item`."""


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


def _is_eager_block():
    """True in the eager code of an eager block (not in a function that it happens to trace)."""
    return context.executing_eagerly() and scopes.scopes()[-1].graph is None


def _draw(what, draw):
    """Draw a seed in the block's own graph, folded with the iterations of the loops we are in."""
    if context.executing_eagerly():
        return scopes.noted(what, draw)
    graph = block_graph()
    if graph is ops.get_default_graph():
        return _draw_before_conditions(graph, draw)
    with graph.as_default(), ops.control_dependencies(None):
        seed = draw()
    for iteration in iterations(graph):
        seed = seed + tf.stack([0, tf.cast(iteration, tf.int32)])
    return seed


def _draw_before_conditions(graph, draw):
    """Draw outside the `tf.cond` of TensorFlow 1 that we are in, so that what uses it can be copied."""
    inner = graph._get_control_flow_context()
    outer = control_flow.around_conditions(inner, scopes.scopes()[0].context)
    if outer is inner:
        return draw()
    with ops.control_dependencies(None):  # leaves all contexts
        graph._set_control_flow_context(outer)
        seed = draw()
        graph._set_control_flow_context(None)
    return seed


def _in_block():
    return _is_eager_block() or (not context.executing_eagerly() and block_graph() is not None)


_INT_RANGE = (-(2**31), 2**31 - 1)
_draw_ints = gen_random_ops.random_uniform_int


def draw_seed(seed, seed2):
    """Draw two ints from the generator that an op with these seeds would have."""
    return _draw_ints([2], *_INT_RANGE, seed=seed, seed2=seed2)


def _stateless(twin):
    """Replace a random op by `twin(shape, seed, ...)`, seeded from the op's own generator."""

    def replacement(original, shape, dtype=dtypes.float32, seed=0, seed2=0, name=None):
        if not _in_block():
            return original(shape=shape, dtype=dtype, seed=seed, seed2=seed2, name=name)
        drawn = _draw(twin.__name__, lambda: draw_seed(seed, seed2))
        return twin(shape, drawn, dtype=dtype, name=name)

    return replacement


def _stateless_int(original, shape, minval, maxval, seed=0, seed2=0, name=None):
    if not _in_block():
        return original(shape=shape, minval=minval, maxval=maxval, seed=seed, seed2=seed2, name=name)
    drawn = _draw("random_uniform_int", lambda: draw_seed(seed, seed2))
    return gen_stateless_random_ops.stateless_random_uniform_int(shape, drawn, minval, maxval, name=name)


def _from_generator(twin):
    """Replace an op on the state of a `tf.random.Generator` (TensorFlow up to 2.4) by `twin`."""

    def replacement(original, resource, algorithm, shape, dtype=dtypes.float32, name=None):
        if not _in_block():
            return original(resource=resource, algorithm=algorithm, shape=shape, dtype=dtype, name=name)

        def draw():
            return gen_stateful_random_ops.stateful_uniform_full_int(
                resource, algorithm, [2], dtype=dtypes.int32
            )

        return twin(shape, _draw(twin.__name__, draw), dtype=dtype, name=name)

    return replacement


def kept(original, *args, **kwargs):
    """Run what cannot be made again once: in an eager block its result is noted and given again.

    In graph mode nothing is to do: results of stateful ops are kept by `subgraph`.
    """
    if not _is_eager_block():
        return original(*args, **kwargs)
    return scopes.noted(original.__name__, lambda: original(*args, **kwargs))


def _read(original, resource, dtype, name=None):
    """Read a variable once, in the block's graph, also where a branch or loop asks for it."""
    graph = None if context.executing_eagerly() else block_graph()
    if graph is None or _is_plain_place(graph) or _is_noted(resource, "written"):
        return original(resource, dtype, name=name)
    for scope in scopes.scopes():
        scope.lifted.add(id(resource))
    with graph.as_default(), ops.control_dependencies(None):
        return original(resource, dtype, name=name)


def _is_plain_place(graph):
    """True in the block's own graph, outside the branches and loops of TensorFlow 1."""
    return graph is ops.get_default_graph() and graph._get_control_flow_context() is None


def _is_noted(resource, where):
    return any(id(resource) in getattr(scope, where) for scope in scopes.scopes())


def _write(original, resource, *args, **kwargs):
    """Note the value that a variable has before its first write in an eager block."""
    if context.executing_eagerly():
        for scope in scopes.scopes():
            if scope.graph is None and scope.mode == scopes.RECORD and id(resource) not in scope.written:
                if gen_resource_variable_ops.var_is_initialized_op(resource):
                    scope.written[id(resource)] = (resource, _value(resource))
    elif block_graph() is not None and not _is_plain_place(block_graph()):
        if _is_noted(resource, "lifted") and in_loop(block_graph()):
            raise RematError(
                "A variable that a recomputed block reads in tf.while_loop may not be written there "
                f"afterwards. Received: a write by {original.__name__}. Write it outside the loop, or "
                "leave this layer "
                "out of the recomputed block."
            )
        for scope in scopes.scopes():
            scope.written[id(resource)] = None
    return original(resource, *args, **kwargs)


def _value(resource):
    """Read the variable behind an eager handle."""
    dtype = dtypes.as_dtype(resource._handle_data.shape_and_type[0].dtype)
    return gen_resource_variable_ops.read_variable_op(resource, dtype)


def _call_function(original, self, *args, **kwargs):
    """Run the Python of a `tf.function` in the block: a cached trace has random ops of its own."""
    if not _in_block() or scopes.scopes()[-1].everywhere:
        return original(self, *args, **kwargs)
    python_function = self._python_function
    if self._autograph:
        python_function = converted(python_function)
    return python_function(*args, **kwargs)


def _install():
    for twin, name in (
        (gen_stateless_random_ops.stateless_random_uniform, "random_uniform"),
        (gen_stateless_random_ops.stateless_random_normal, "random_standard_normal"),
        (gen_stateless_random_ops.stateless_truncated_normal, "truncated_normal"),
    ):
        wrap(gen_random_ops, name, _stateless(twin))
    wrap(gen_random_ops, "random_uniform_int", _stateless_int)
    for twin, name in (
        (gen_stateless_random_ops.stateless_random_uniform, "stateful_uniform"),
        (gen_stateless_random_ops.stateless_random_normal, "stateful_standard_normal_v2"),
        (gen_stateless_random_ops.stateless_truncated_normal, "stateful_truncated_normal"),
    ):
        wrap(gen_stateful_random_ops, name, _from_generator(twin))
    for module, names in (
        (gen_random_ops, _KEPT_RANDOM),
        (gen_stateful_random_ops, _KEPT_STATEFUL),
    ):
        for name in names:
            wrap(module, name, kept)
    wrap(random_seed, "get_seed", kept)  # it draws from a generator of its own in eager mode
    wrap(gen_resource_variable_ops, "read_variable_op", _read)
    for name in _WRITES:
        wrap(gen_resource_variable_ops, name, _write)
    wrap(def_function.Function, "__call__", _call_function)


_KEPT_RANDOM = (
    "multinomial",
    "parameterized_truncated_normal",
    "random_gamma",
    "random_poisson",
    "random_poisson_v2",
    "random_shuffle",
)
_KEPT_STATEFUL = (
    "non_deterministic_ints",
    "rng_read_and_skip",
    "rng_skip",
    "stateful_random_binomial",
    "stateful_standard_normal",
    "stateful_uniform_full_int",
    "stateful_uniform_int",
)
_WRITES = (
    "assign_variable_op",
    "assign_add_variable_op",
    "assign_sub_variable_op",
    "resource_scatter_add",
    "resource_scatter_div",
    "resource_scatter_max",
    "resource_scatter_min",
    "resource_scatter_mul",
    "resource_scatter_nd_add",
    "resource_scatter_nd_sub",
    "resource_scatter_nd_update",
    "resource_scatter_sub",
    "resource_scatter_update",
)

_install()
