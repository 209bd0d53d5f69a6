"""What the planner is told of a model: the calls of its graph and their costs.

A long model inside a model is cut by itself: a block cannot begin in one model and end in another.
"""

from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional

from keras_remat.planning.calls import Calls, Segment
from keras_remat.planning.costs import Tensors, UntraceableError
from keras_remat.planning.estimates import Estimates
from keras_remat.planning.waiting import with_waiting

MANY = 4  # calls from which on a model inside a model is cut by itself


class Part(NamedTuple):
    """One model: its calls, and the keys of its outputs.

    Attributes:
      costs: the `Calls` that the planner knows them as; None where nobody asked.
      separate: positions of calls that are in no block.
      inner: the parts of models among them, by position.
      names: of a part inside another, the keys that tensors of it have there.
    """

    model: Any
    calls: List[Any]
    outputs: List[str]
    costs: Optional[Calls]
    separate: FrozenSet[int]
    inner: Dict[int, "Part"]
    names: Dict[str, str]


class Cut(NamedTuple):
    """A part and its blocks, and the same for the parts inside it, by position."""

    part: Any
    blocks: List[Segment]
    inner: Dict[int, "Cut"]


def _nothing(layer):
    return False


def part_of(family, model, is_every, excluded=_nothing, tensors=None):
    """Return the `Part` of a model.

    Args:
      is_every: True to cut short models inside it by themselves as well.
      excluded: predicate of layers that are in no block.
      tensors: `costs.Tensors` that the model takes, to which those that it makes are added, or `Estimates`;
        None where nobody asks for costs.
    """
    calls, outputs = family.calls(model), family.output_keys(model)
    costs = tensors.calls(calls, outputs) if tensors is not None else None
    separate, inner = set(), {}
    for i, call in enumerate(calls):
        if excluded(call.layer):
            separate.add(i)
            continue
        own = family.calls(call.layer) if family.is_model(call.layer) else None
        is_long = own is not None and (len(own) >= MANY or is_every)
        if is_long or any(map(excluded, family.sublayers(call.layer))):
            separate.add(i)
            if own is not None:
                inner[i] = _inner_part(family, call, is_every, excluded, tensors)
    return Part(model, calls, outputs, costs, frozenset(separate), inner, {})


def _inner_part(family, call, is_every, excluded, tensors):
    """Return the `Part` of a model that is called inside another one."""
    if tensors is None:
        return part_of(family, call.layer, is_every, excluded)
    given, inner = inside(family, call, tensors)
    part = part_of(family, call.layer, is_every, excluded, inner)
    return part._replace(names=names_of(part, call, given, inner, tensors))


def inside(family, call, tensors):
    """Return {its key: key outside} of what a model inside another takes, and its `Tensors`."""
    given = tensors.with_masks(dict(zip(input_keys(family, call.layer), call.inputs)))
    return given, tensors.of_inner(given)


def names_of(part, call, given, inner, tensors):
    """Return the keys that tensors of a part have outside, which `call` puts out or was `given`."""
    made = dict(zip(part.outputs, call.outputs))
    outside = {**tensors.with_masks(made), **given}
    return {inner.roots[own]: tensors.roots[key] for own, key in outside.items()}


def input_keys(family, model):
    """List the keys of the tensors that a model takes; none if they are not known."""
    return list(family.input_specs(model, lambda position, shape: shape) or ())


def part_with_costs(family, model, sizes, is_every=False, excluded=_nothing):
    """Return the `Part` of a model with its costs, and why they are estimates; None if they were traced.

    Args:
      sizes: `plans.Sizes`.
      is_every, excluded: see `part_of`.
    """
    return with_costs(family, model, sizes, lambda t: part_of(family, model, is_every, excluded, t))


def with_costs(family, model, sizes, make):
    """Return what `make` makes of the tensors that a model takes, and why they are `Estimates`, or None."""
    try:
        specs = family.input_specs(model, sizes.of)
        if specs is None:
            raise UntraceableError("the shapes of its inputs are not known")
        return make(Tensors(family, specs)), None
    except UntraceableError as reason:
        return make(Estimates(sizes.batch_size)), str(reason)


def flat(part):
    """Return the `Calls` of a part with those of the parts inside it, and with what waits meanwhile."""
    return with_waiting(_flat(part))


def _flat(part):
    costs, sizes = [], dict(part.costs.sizes)
    for i, cost in enumerate(part.costs.costs):
        if i not in part.inner:
            costs.append(cost)
            continue
        inner, names = _flat(part.inner[i]), part.inner[i].names
        key_of = {key: names.get(key, (i, key)) for c in inner.costs for key in (*c.inputs, *c.outputs)}
        sizes.update({key_of[key]: size for key, size in inner.sizes.items() if key in key_of})
        costs += [_renamed(c, key_of) for c in inner.costs]
    return Calls(tuple(costs), sizes, part.costs.results)


def _renamed(cost, key_of):
    return cost._replace(
        inputs=tuple(key_of[key] for key in cost.inputs),
        outputs=tuple(key_of[key] for key in cost.outputs),
        needs=frozenset(key_of[key] for key in cost.needs),
    )


def runs(part):
    """List the (start, stop) of calls in a row that may be in blocks."""
    found, start = [], 0
    for stop in sorted(part.separate) + [len(part.calls)]:
        if stop > start:
            found.append((start, stop))
        start = stop + 1
    return found


def share(strategy, length, part):
    """Split a number of segments among the runs of calls of a part; other strategies hold for each run."""
    if isinstance(strategy, str):
        return strategy
    return max(1, int(round(strategy * length / (len(part.calls) - len(part.separate)))))
