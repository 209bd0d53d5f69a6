"""Traces of blocks that serve later calls.

`jax.checkpoint` runs the Python of a block to trace it, at every eager call anew if it is given another
function each time. Here the function of an earlier call is found again by all that a trace may depend on:
arguments that are no arrays, shapes and types of those that are, the context of Keras, and the attributes of
the layers and closures that run. What holds a tracer is traced anew.
"""

import collections
import hashlib
import types

import jax
import numpy as np
from jax._src import core

_MOST = 16  # traces that a layer keeps
_NAME = "_keras_remat_traces"
# What Keras writes in a call, and what is in `layer.variables` anyway.
_IGNORED = {"_losses", "_loss_ids", "_called", "_parent_path", "_tracker"}
_IGNORED |= {"_inbound_nodes", "_outbound_nodes"}
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, type)
_OTHERS = ("keras.", "jax", "numpy", "builtins", "keras_remat.")


class _Traces:
    """The traces that a layer (or function) keeps, the one used last at the end."""

    def __init__(self):
        self.entries = collections.OrderedDict()

    def find(self, key):
        if key in self.entries:
            self.entries.move_to_end(key)
        return self.entries.get(key)

    def add(self, key, entry):
        self.entries[key] = entry
        if len(self.entries) > _MOST:
            self.entries.popitem(last=False)

    def __deepcopy__(self, memo):
        return _Traces()

    def __reduce__(self):
        return _Traces, ()


class _HoldsTracer(Exception):
    """Something that a trace depends on is traced itself."""


def run(call):
    """Run `call` by the trace of an earlier one, if there is any; return the one traced, and results."""
    tensors, held = call.tensors, []
    try:
        key = _key(call, held)
    except _HoldsTracer:
        return call, _checkpointed(call)(*tensors)
    traces = _traces_of(call.block)
    entry = traces.find(key)
    if entry is None:
        call.is_kept, call.tensors, call.state.tensors = True, None, []
        entry = call, _checkpointed(call), held  # what is held keeps its id
    results = entry[1](*tensors)
    if not entry[0].state.entries:  # else it holds the value of a variable that is no input
        traces.add(key, entry)
    return entry[0], results


def _checkpointed(call):
    return jax.checkpoint(lambda *tensors: call(list(tensors)))


def _traces_of(block):
    owner = block.layers[0] if block.layers else getattr(block.run, "__func__", block.run)
    return vars(owner).setdefault(_NAME, _Traces())


def _key(call, held):
    family, block = call.block.family, call.block
    digest = _Digest(held)
    layers = family.all_sublayers(block.layers)
    found = [digest(block.run), digest(call.leaves), call.spec, tuple(call.places)]
    found += [digest(family.call_key(call.call_state))]
    found += [digest.attributes(layer) for layer in layers]
    found += [tuple(map(id, call.state.variables)), tuple(call.state.masked)]
    held.extend(call.state.variables)
    types_ = [(t.shape, t.dtype, getattr(t, "weak_type", False)) for t in call.tensors]
    return (*found, *types_)


class _Digest:
    """Makes of any value one that is equal if the value is, and can be the key of a dict.

    Plain data counts by its value, functions by their code and closure; of all else only the object itself
    counts, which is put into the list `held` so that no other one gets its id.
    """

    def __init__(self, held):
        self.held, self.seen = held, set()

    def __call__(self, value):
        if isinstance(value, _CONSTANTS):
            return type(value), value
        if isinstance(value, core.Tracer):
            raise _HoldsTracer
        if isinstance(value, dict):
            return "dict", tuple((self(k), self(v)) for k, v in value.items())
        if isinstance(value, (list, tuple)):
            return type(value), tuple(map(self, value))
        if isinstance(value, (set, frozenset)):
            return type(value), frozenset(map(self, value))
        if isinstance(value, np.ndarray):  # may be written in place
            return value.shape, value.dtype, hashlib.blake2b(np.ascontiguousarray(value)).digest()
        if isinstance(value, types.MethodType):
            return self(value.__func__), self(value.__self__)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        return self._object(value)

    def attributes(self, holder):
        """Digest the attributes of an object."""
        items = vars(holder).items()
        return tuple((k, self(v)) for k, v in items if k not in _IGNORED and not k.startswith("_keras_remat"))

    def _function(self, function):
        cells = [cell for cell in function.__closure__ or () if _is_filled(cell)]
        self.held.append(function.__code__)
        contents = tuple(self(cell.cell_contents) for cell in cells if self._is_new(cell))
        return id(function.__code__), contents, self(function.__defaults__), self(function.__kwdefaults__)

    def _object(self, value):
        self.held.append(value)
        found = id(value)
        is_users = not type(value).__module__.startswith(_OTHERS) and hasattr(value, "__dict__")
        if is_users and not isinstance(value, types.ModuleType) and self._is_new(value):
            return found, self.attributes(value)
        return found

    def _is_new(self, value):
        is_new = id(value) not in self.seen
        self.seen.add(id(value))
        return is_new


def _is_filled(cell):
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
