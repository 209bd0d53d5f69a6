"""The costs of every call of a model: each kind of call is traced once, alone, and so is its gradient.

What the calls keep adds up exactly to what the whole model keeps, because each tensor is counted once, where
it is made: a call says which of its inputs and outputs its gradient reads, and how much it makes inside.
"""

import json
from typing import Any, Dict

from keras_remat.planning.calls import Calls, Cost
from keras_remat.planning.progress import watched


def trace_calls(family, calls, outputs, tensors):
    """Return the `Calls` of a model's calls.

    Args:
      calls: list of `families.base.Call`.
      outputs: keys of what the model puts out.
      tensors: `Tensors` that the model takes, to which those that it makes are added.

    Raises:
      UntraceableError: a call cannot be traced.
    """
    kinds: Dict[Any, Any] = {}
    costs = []
    for call in watched(calls, "Tracing calls"):
        keys, masked = tensors.given(call)
        given, wanted = [tensors.specs[key] for key in keys], [tensors.wanted[key] for key in keys]
        kind = _kind(family, call, given, wanted, masked)
        found = kinds.get(kind) or _trace(family, call, given, wanted, masked)
        if kind is not None:
            kinds[kind] = found
        costs.append(tensors.cost(call, keys, *found))
    results = tuple(dict.fromkeys(tensors.roots[key] for key in outputs))
    return Calls(tuple(costs), tensors.sizes, results)


def _trace(family, call, given, wanted, masked):
    try:
        return family.trace(call, given, wanted, masked)
    except Exception as error:  # any layer's code may be one that cannot run without data
        kind = type(error).__name__
        raise UntraceableError(
            f"the call of {call.layer.name!r} cannot be traced ({kind}: {error})"
        ) from error


class UntraceableError(Exception):
    """The costs of a model are not known to a trace; says why."""


class Tensors:
    """What is known of the tensors of a model so far, by their keys. A mask is a tensor as well."""

    def __init__(self, family, specs):
        self.family, self.specs, self.sizes = family, dict(specs), {}
        self.roots = {key: key for key in specs}  # the tensor whose buffer it is
        self.wanted = dict.fromkeys(specs, False)  # whether a gradient flows back through it

    def calls(self, calls, outputs):
        """Return the `Calls` of a model that takes these tensors; see `trace_calls`."""
        return trace_calls(self.family, calls, outputs, self)

    def of_inner(self, names):
        """Return the tensors that a model inside takes, of which `names` gives the keys here by its own."""
        inner = Tensors(self.family, {own: self.specs[key] for own, key in names.items()})
        inner.wanted.update({own: self.wanted[key] for own, key in names.items()})
        return inner

    def with_masks(self, names):
        """Return `names`, {another key: key here}, with those of masks."""
        masks = {mask_of(own): mask_of(key) for own, key in names.items() if mask_of(key) in self.specs}
        return {**names, **masks}

    def given(self, call):
        """Return the keys of what a call takes, masks last, and the positions of inputs that have one."""
        masked = tuple(i for i, key in enumerate(call.inputs) if mask_of(key) in self.specs)
        return [*call.inputs, *(mask_of(call.inputs[i]) for i in masked)], masked

    def cost(self, call, keys, traced, masked):
        """Add the outputs of a call that takes `keys`, and return its `Cost`."""
        inputs = [self.roots[key] for key in keys]
        outputs = [*call.outputs, *(mask_of(call.outputs[i]) for i in masked)]
        made = []
        for i, key in enumerate(outputs):
            self.specs[key], self.wanted[key] = traced.outputs[i], traced.is_differentiable
            view = traced.views[i]
            self.roots[key] = key if view is None else inputs[view]
            if view is None:
                made.append(key)
                self.sizes[key] = traced.sizes[i]
        needs = [root for root, is_read in zip(inputs, traced.needs_inputs) if is_read]
        needs += [self.roots[key] for key, is_read in zip(outputs, traced.needs_outputs) if is_read]
        return Cost(
            name=call.layer.name,
            inputs=tuple(dict.fromkeys(inputs)),
            outputs=tuple(made),
            inner=traced.inner,
            needs=frozenset(needs),
            work=float(traced.work),
            tail=float(traced.tail),
            transient=traced.transient,
        )


def mask_of(key):
    """Return the key of a tensor's mask."""
    return f"mask of {key}"


def _kind(family, call, specs, wanted, masked):
    """What calls that cost the same have in common; None where a layer may do anything."""
    layers = family.sublayers(call.layer)
    if not layers or not all(map(family.is_own_class, layers)) or type(call.layer).__name__ == "Lambda":
        return None
    config = json.dumps(dict(call.layer.get_config(), name=None), sort_keys=True, default=repr)
    weights = [(tuple(w.shape), str(w.dtype), w.trainable) for w in call.layer.weights]
    return type(call.layer), config, str(weights), str(specs), str(wanted), masked, family.arguments_of(call)
