"""A second run that waits for its gradient on a CPU too, where XLA drops optimization barriers.

`jax.checkpoint` puts a barrier around what a second run reads and the gradients that it is for. XLA for CPUs
takes barriers away before it orders the program, and may then run all blocks again before it needs any of
them. So there each input becomes a choice that depends on the gradient: whether a number of it equals itself,
which XLA may not assume of what may be no number.
"""

import jax
from jax import numpy as jnp
from jax._src import ad_checkpoint
from jax._src.interpreters import mlir


def policy(*unused, **unused_too):
    """Save nothing, as without a policy. By this one, blocks are told from other uses of `jax.checkpoint`."""
    return False


def _tied(*args):
    """Return `args`, all that come before the last gradient as choices that depend on it."""
    last = max((i for i, x in enumerate(args) if _is_float(x) and x.size), default=0)
    if last == 0:
        return list(args)
    probe = args[last].ravel()[0]
    is_number = probe == probe
    return [_tie(x, is_number) for x in args[:last]] + list(args[last:])


def _tie(x, is_number):
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):  # keys of random generators
        return x
    other = jnp.nan if _is_float(x) else 0
    return jnp.where(is_number, x, jnp.asarray(other, x.dtype))


def _is_float(x):
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _register():
    default = mlir._lowerings[ad_checkpoint.remat_p]
    default = getattr(default, "rule", default)  # JAX 0.4 has the rule itself
    tie = mlir.lower_fun(_tied, multiple_results=True)

    def lower(ctx, *args, **params):
        if params["differentiated"] and params["policy"] is policy:
            inner = ctx.replace(avals_out=ctx.avals_in, tokens_in=mlir.TokenSet(), tokens_out=None)
            args = tie(inner, *args)
        return default(ctx, *args, **params)

    mlir.register_lowering(ad_checkpoint.remat_p, lower, platform="cpu")


_register()
