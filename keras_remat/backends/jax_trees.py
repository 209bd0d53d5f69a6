"""Nested arguments and outputs as lists of leaves, on JAX.

JAX's own flattening sorts the keys of dicts; a layer is called with, and gives, dicts in their own order.
"""

import collections

import jax

_DICTS = (dict, collections.OrderedDict)


def flatten(structure):
    """List the leaves of nested dicts, lists, tuples and pytrees; return, hashable, what packs them."""
    leaves = []
    return leaves, _visit(structure, leaves)


def _visit(value, leaves):
    if isinstance(value, dict):
        kind = type(value) if type(value) in _DICTS else dict
        return kind, tuple(value), tuple(_visit(v, leaves) for v in value.values())
    if isinstance(value, (list, tuple)):
        is_known = type(value) is tuple or hasattr(value, "_fields")
        return type(value) if is_known else list, None, tuple(_visit(v, leaves) for v in value)
    inner, spec = jax.tree_util.tree_flatten(value)  # None, a leaf, or a class that is registered with JAX
    leaves.extend(inner)
    return spec


def pack(spec, leaves):
    """Put `leaves` in the places of those that `flatten` listed."""
    return _pack(spec, iter(leaves))


def _pack(spec, leaves):
    if not isinstance(spec, tuple):
        return jax.tree_util.tree_unflatten(spec, [next(leaves) for _ in range(spec.num_leaves)])
    kind, keys, inner = spec
    values = [_pack(one, leaves) for one in inner]
    if keys is not None:
        return kind(zip(keys, values))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)
