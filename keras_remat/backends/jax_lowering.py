"""Runs that wait for what they are for on a CPU too, where XLA drops optimization barriers.

`jax.checkpoint` puts a barrier around what a second run reads and the gradients that it is for. XLA for CPUs
takes barriers away before it orders the program, and may then run all blocks again before it needs any of
them. It may also draw the random numbers of all blocks first, since these depend on seeds alone. So the
inputs of a second run become choices that depend on the gradient, and the seeds of a run choices that depend
on its other inputs. What is chosen is always the input: a number that equals itself and does not is none,
which XLA does not know.
"""

from typing import Any, FrozenSet, NamedTuple, Tuple

import jax
from jax import numpy as jnp
from jax._src import ad_checkpoint
from jax._src.interpreters import mlir


class Policy(NamedTuple):
    """Saves nothing, as no policy does. By its class, blocks are told from other uses of `jax.checkpoint`.

    `resident` has the (shape, dtype) of variables that no other input has: a choice would copy these, and
    what is computed from them waits for the other inputs anyway.
    """

    resident: FrozenSet[Tuple[Tuple[int, ...], Any]]

    def __call__(self, *unused, **unused_too):
        return False


def policy_of(inputs, variables):
    """Return the `Policy` of a block that is called with `inputs` and reads `variables`."""
    return Policy(frozenset(map(_kind, variables)) - frozenset(map(_kind, inputs)))


def _kind(x):
    return tuple(x.shape), x.dtype


def _tied(*args, resident):
    """Return `args`, what is not resident of those before the last gradient as choices that depend on it."""
    last = max((i for i, x in enumerate(args) if _is_float(x) and x.size), default=0)
    if last == 0:
        return list(args)
    never = _never(args[last])
    free = [_is_float(x) and _kind(x) in resident for x in args[:last]]
    return [x if is_free else _tie(x, never) for x, is_free in zip(args, free)] + list(args[last:])


def with_late_seeds(tensors):
    """Return what a block is given, seeds and other whole numbers as choices that depend on a float."""
    probe = next((x for x in tensors if _is_float(x) and x.size), None)
    if probe is None or all(map(_is_float, tensors)):
        return tensors
    never = _never(probe)
    return [x if _is_float(x) else _tie(x, never) for x in tensors]


def _never(x):
    probe = x.ravel()[0]
    return (probe == probe) & (probe != probe)


def _tie(x, never):
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):  # keys of random generators
        return x
    return jnp.where(never, jnp.zeros((), x.dtype), x)


def _is_float(x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _register():
    default = mlir._lowerings[ad_checkpoint.remat_p]
    default = getattr(default, "rule", default)  # JAX 0.4 has the rule itself
    tie = mlir.lower_fun(_tied, multiple_results=True)

    def lower(ctx, *args, **params):
        if params["differentiated"] and isinstance(params["policy"], Policy):
            inner = ctx.replace(avals_out=ctx.avals_in, tokens_in=mlir.TokenSet(), tokens_out=None)
            args = tie(inner, *args, resident=params["policy"].resident)
        return default(ctx, *args, **params)

    mlir.register_lowering(ad_checkpoint.remat_p, lower, platform="cpu")


_register()
