"""What the planner is told of a model: the calls of its graph and their costs.

A long model inside a model is cut by itself: a block cannot begin in one model and end in another.
"""

from typing import Any, Dict, FrozenSet, List, NamedTuple

from keras_remat.planning.calls import Calls, Cost, Segment
from keras_remat.planning.costs import trace_calls

_MANY = 4  # calls from which on a model inside a model is cut by itself


class Part(NamedTuple):
    """One model: its calls, the keys of its outputs, and the costs of its calls.

    Attributes:
      separate: positions of calls that are in no block.
      inner: the parts of models among them, by position.
      names: of a part inside another, the keys that tensors of it have there.
      note: why the costs are estimates, in elements of a sample instead of bytes; or "".
    """

    model: Any
    calls: List[Any]
    outputs: List[str]
    costs: Calls
    separate: FrozenSet[int]
    inner: Dict[int, "Part"]
    names: Dict[str, str]
    note: str


class Cut(NamedTuple):
    """A part and its blocks, and the same for the parts inside it, by position."""

    part: Any
    blocks: List[Segment]
    inner: Dict[int, "Cut"]


def part_of(family, model, is_every, excluded, specs):
    """Return the `Part` of a model that takes tensors of `specs`, {key: (shape, dtype)} or None.

    If `is_every`, short models inside it are cut by themselves as well.
    """
    calls, outputs = family.calls(model), family.output_keys(model)
    costs, tensors, note = _costs(family, calls, outputs, specs)
    separate, inner = set(), {}
    for i, call in enumerate(calls):
        if excluded(call.layer):
            separate.add(i)
            continue
        own = family.calls(call.layer) if family.is_model(call.layer) else None
        is_long = own is not None and (len(own) >= _MANY or is_every)
        if is_long or any(map(excluded, family.sublayers(call.layer))):
            separate.add(i)
            if own is not None:
                inner[i] = _inner_part(family, call, is_every, excluded, tensors)
    return Part(model, calls, outputs, costs, frozenset(separate), inner, {}, note)


def _inner_part(family, call, is_every, excluded, tensors):
    """Return the `Part` of a model that is called inside another one."""
    keys = family.input_keys(call.layer) if tensors is not None else None
    given = dict(zip(keys, call.inputs)) if keys is not None else {}
    specs = {own: tensors.specs[key] for own, key in given.items()} if given else None
    part = part_of(family, call.layer, is_every, excluded, specs)
    if tensors is None:
        return part
    names = {own: tensors.roots[key] for own, key in given.items()}
    for own, key in zip(part.costs.results, call.outputs):
        names.setdefault(own, tensors.roots[key])
    return part._replace(names=names)


def _costs(family, calls, outputs, specs):
    """Return the costs of calls, all tensors, and why the costs are estimates."""
    if specs is None:
        return estimated(calls, outputs), None, "the shapes of its inputs are not known to a trace"
    try:
        return (*trace_calls(family, calls, outputs, specs), "")
    except Exception as error:  # any layer's code may be one that cannot run without data
        return estimated(calls, outputs), None, f"a call cannot be traced: {type(error).__name__}: {error}"


def estimated(calls, outputs):
    """What calls cost if all that is known are the sizes of what they put out, in elements of a sample."""
    costs, sizes = [], {}
    for call in calls:
        sizes.update(dict.fromkeys(call.outputs, 0))
        sizes[call.outputs[0]] = call.size
        needs = frozenset([*call.inputs, *call.outputs])
        inner = max(0, call.inside - call.size)
        costs.append(Cost(call.layer.name, call.inputs, call.outputs, inner, needs, float(call.inside)))
    return Calls(tuple(costs), sizes, tuple(outputs))


def flat(part):
    """Return the `Calls` of a part with those of the parts inside it, and the (part, position) of each."""
    costs, sizes, places = [], dict(part.costs.sizes), []
    for i, cost in enumerate(part.costs.costs):
        if i not in part.inner:
            costs.append(cost)
            places.append((part, i))
            continue
        inner, inner_places = flat(part.inner[i])
        names = part.inner[i].names
        key_of = {key: names.get(key, (i, key)) for c in inner.costs for key in (*c.inputs, *c.outputs)}
        sizes.update({key_of[key]: size for key, size in inner.sizes.items() if key in key_of})
        costs += [_renamed(c, key_of) for c in inner.costs]
        places += inner_places
    return Calls(tuple(costs), sizes, part.costs.results), places


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


def between(calls, start, stop):
    """Return the `Calls` from `start` to before `stop`; what others read of them is what they put out."""
    costs = calls.costs[start:stop]
    later = {key for cost in calls.costs[stop:] for key in cost.inputs} | set(calls.results)
    made = [key for cost in costs for key in cost.outputs]
    return Calls(costs, calls.sizes, tuple(key for key in made if key in later))
