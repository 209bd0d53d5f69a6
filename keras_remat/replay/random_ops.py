"""Random numbers in a block: stateless ones, whose seeds are drawn once and kept.

The seed, two ints, comes from the generator of the op that is replaced, so that `seed=` and `set_seed`
mean what they meant. What has no stateless twin is run once, and its result is kept.
"""

import contextlib
import re

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes, ops, random_seed
from tensorflow.python.ops import (
    gen_candidate_sampling_ops,
    gen_image_ops,
    gen_random_ops,
    gen_stateful_random_ops,
    gen_stateless_random_ops,
)

from keras_remat.replay import control_flow
from keras_remat.replay import scope as scopes
from keras_remat.replay.graphs import block_graph, iterations
from keras_remat.replay.wrapping import in_block, kept, wrap


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


def _draw(what, draw, shape):
    """Draw a seed in the block's own graph, folded with the iterations of the loops we are in.

    `shape` is what the op would wait for.
    """
    if context.executing_eagerly():
        return scopes.noted(what, draw)
    graph = block_graph()
    if graph is ops.get_default_graph():
        return _draw_before_conditions(graph, draw, shape)
    with graph.as_default(), ops.control_dependencies(None):
        seed = draw()
    for iteration in iterations(graph):
        seed = seed + tf.stack([0, tf.cast(iteration, tf.int32)])
    return seed


def _draw_before_conditions(graph, draw, shape):
    """Draw outside the `tf.cond` of TensorFlow 1 that we are in, so that what uses it can be copied."""
    inner = graph._get_control_flow_context()
    outer = control_flow.around_conditions(inner, scopes.scopes()[0].context)
    if outer is inner:
        # Iterations of a loop of TensorFlow 1 overlap: what waits for nothing draws in any order.
        with ops.control_dependencies([shape] if inner and isinstance(shape, tf.Tensor) else []):
            return draw()
    with ops.control_dependencies(None):  # leaves all contexts
        graph._set_control_flow_context(outer)
        seed = draw()
        graph._set_control_flow_context(None)
    return seed


_INT_RANGE = (-(2**31), 2**31 - 1)
# The ops as they are, taken before they are wrapped: what is drawn with them is noted once, by `_draw`.
_draw_ints = gen_random_ops.random_uniform_int
_draw_ints_from_generator = getattr(gen_stateful_random_ops, "stateful_uniform_full_int", None)


def draw_seed(seed, seed2):
    """Draw two ints from the generator that an op with these seeds would have."""
    return _draw_ints([2], *_INT_RANGE, seed=seed, seed2=seed2)


def _stateless(twin):
    """Replace a random op by `twin(shape, seed, ...)`, seeded from the op's own generator."""

    def replacement(original, shape, dtype=dtypes.float32, seed=0, seed2=0, name=None):
        if not in_block():
            return original(shape=shape, dtype=dtype, seed=seed, seed2=seed2, name=name)
        drawn = _draw(twin.__name__, lambda: draw_seed(seed, seed2), shape)
        return twin(shape, drawn, dtype=dtype, name=name)

    return replacement


def _stateless_int(original, shape, minval, maxval, seed=0, seed2=0, name=None):
    if not in_block():
        return original(shape=shape, minval=minval, maxval=maxval, seed=seed, seed2=seed2, name=name)
    drawn = _draw("random_uniform_int", lambda: draw_seed(seed, seed2), shape)
    return gen_stateless_random_ops.stateless_random_uniform_int(shape, drawn, minval, maxval, name=name)


def _from_generator(twin):
    """Replace an op on the state of a `tf.random.Generator` (TensorFlow up to 2.4) by `twin`."""

    def replacement(original, resource, algorithm, shape, dtype=dtypes.float32, name=None):
        if not in_block():
            return original(resource=resource, algorithm=algorithm, shape=shape, dtype=dtype, name=name)

        def draw():
            return _draw_ints_from_generator(resource, algorithm, [2], dtype=dtypes.int32)

        return twin(shape, _draw(twin.__name__, draw, shape), dtype=dtype, name=name)

    return replacement


_UNIFORM = gen_stateless_random_ops.stateless_random_uniform
_NORMAL = gen_stateless_random_ops.stateless_random_normal
_TRUNCATED = gen_stateless_random_ops.stateless_truncated_normal
_TWINS = (  # of the op with seeds, and of the op on a generator's state
    ("random_uniform", "stateful_uniform", _UNIFORM),
    ("random_standard_normal", "stateful_standard_normal_v2", _NORMAL),
    ("truncated_normal", "stateful_truncated_normal", _TRUNCATED),
)
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
_IS_SAMPLER = re.compile(r"[a-z_]*candidate_sampler|sample_distorted_bounding_box(_v2)?")

for _name, _generator_name, _twin in _TWINS:
    wrap(gen_random_ops, _name, _stateless(_twin))
    wrap(gen_stateful_random_ops, _generator_name, _from_generator(_twin))
wrap(gen_random_ops, "random_uniform_int", _stateless_int)
for _name in _KEPT_RANDOM:
    wrap(gen_random_ops, _name, kept)
for _module in gen_candidate_sampling_ops, gen_image_ops:
    for _name in filter(_IS_SAMPLER.fullmatch, dir(_module)):
        wrap(_module, _name, kept)
for _name in _KEPT_STATEFUL:
    wrap(gen_stateful_random_ops, _name, kept)
wrap(random_seed, "get_seed", kept)  # it draws from a generator of its own in eager mode
