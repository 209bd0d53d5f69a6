"""What a call costs on JAX, by a trace of it and of its gradient: nothing is computed.

Kept for the backward pass are the residuals of `jax.vjp`: what the function that it returns holds.
"""

import jax
from jax.extend.core import Literal

from keras_remat.backends.costs import Traced, prod

_VIEWS = {"reshape", "squeeze", "expand_dims", "stop_gradient", "copy_p", "name"}


def trace(run, specs, wanted, values, trained):
    """Trace `run(values, *tensors)` and its gradient; see `costs.Traced`."""
    inputs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs]
    weights = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    count = len(weights)
    flags = [flag and _is_float(t) for flag, t in zip((*trained, *wanted), (*weights, *inputs))]

    def traced(*given):
        def differentiated(*sources):
            sources = iter(sources)
            merged = [next(sources) if flag else t for flag, t in zip(flags, given)]
            return list(run(merged[:count], *merged[count:]))

        outputs, pull = jax.vjp(differentiated, *(t for flag, t in zip(flags, given) if flag))
        return outputs, jax.tree_util.tree_leaves(pull)

    jaxpr, (outputs, _) = jax.make_jaxpr(traced, return_shape=True)(*weights, *inputs)
    is_differentiable = any(flags) and any(map(_is_float, outputs))
    return _summed(jaxpr.jaxpr, count, outputs, is_differentiable)


def _is_float(shaped):
    return jax.numpy.issubdtype(shaped.dtype, jax.numpy.inexact)


def _summed(jaxpr, weight_count, outputs, is_differentiable):
    roots = _roots(jaxpr)
    given = {_root(roots, v): i for i, v in enumerate(jaxpr.invars[weight_count:])}
    resident = set(jaxpr.invars[:weight_count]) | set(jaxpr.constvars)
    made = [_root(roots, v) for v in jaxpr.outvars[: len(outputs)]]
    read = {_root(roots, v) for v in jaxpr.outvars[len(outputs) :]}
    read = {v for v in read if v is not None and v not in resident}
    inner = [v for v in read if v not in given and v not in made]
    work = [_work(eqn) for eqn in jaxpr.eqns]
    again = _needed(jaxpr, read)
    return Traced(
        outputs=[(tuple(o.shape), o.dtype) for o in outputs],
        views=[given.get(v) for v in made],
        sizes=[0 if v is None or v in resident else size_of(v) for v in made],
        inner=sum(map(size_of, inner)),
        needs_inputs=[_root(roots, v) in read for v in jaxpr.invars[weight_count:]],
        needs_outputs=[v in read for v in made],
        work=sum(work),
        tail=sum(w for w, is_needed in zip(work, again) if not is_needed),
        is_differentiable=is_differentiable,
        # Inputs and outputs that it reads, beside their gradients; what XLA fuses is not known.
        transient=sum(size_of(v) for v in read if v in given or v in made),
    )


def _roots(jaxpr):
    roots = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _VIEWS:
            roots[eqn.outvars[0]] = eqn.invars[0]
    return roots


def _root(roots, variable):
    """The variable whose buffer another one is, None for a literal."""
    while not isinstance(variable, Literal) and variable in roots:
        variable = roots[variable]
    return None if isinstance(variable, Literal) else variable


def _needed(jaxpr, read):
    """For each equation, whether something of `read` depends on it."""
    wanted, needed = set(read), []
    for eqn in reversed(jaxpr.eqns):
        is_needed = any(v in wanted for v in eqn.outvars)
        needed.append(is_needed)
        if is_needed:
            wanted.update(v for v in eqn.invars if not isinstance(v, Literal))
    return needed[::-1]


def size_of(variable):
    """Bytes of what a variable of a trace stands for."""
    aval = variable.aval
    return prod(aval.shape) * aval.dtype.itemsize if hasattr(aval, "dtype") else 0


def _work(eqn):
    if eqn.primitive.name in _VIEWS:
        return 0
    return flops(eqn) + 20 * sum(map(size_of, (*eqn.invars, *eqn.outvars)))


def flops(eqn):
    """Floating point operations of an equation: of products and convolutions, else one for each number."""
    name, params = eqn.primitive.name, eqn.params
    made = sum(prod(v.aval.shape) for v in eqn.outvars if hasattr(v.aval, "shape"))
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * made * prod([eqn.invars[0].aval.shape[d] for d in contracted])
    if name == "conv_general_dilated":
        kernel, numbers = eqn.invars[1].aval.shape, params["dimension_numbers"]
        return 2 * made * prod(kernel) // kernel[numbers.rhs_spec[0]]
    inner = [p for p in jax.tree_util.tree_leaves(list(params.values())) if hasattr(p, "eqns")]
    if inner:
        return params.get("length", 1) * sum(
            flops(e) for jaxpr in inner for e in getattr(jaxpr, "jaxpr", jaxpr).eqns
        )
    return made
