"""Traces of blocks that serve later calls.

`jax.checkpoint` runs the Python of a block to trace it, at every eager call anew if it is given another
function each time. Here the function of an earlier call is found again by all that a trace may depend on:
arguments that are no arrays, shapes and types of those that are, the context of Keras, and the attributes of
the layers and closures that run. What holds a tracer is traced anew.
"""

import collections
import functools
import hashlib
import inspect
import types

import jax
import numpy as np
from jax._src import core

from keras_remat.backends import jax_lowering
from keras_remat.replay import host_random

_MOST = 16  # traces that a layer keeps
_NAME = "_keras_remat_traces"
# What Keras writes in a call, and what is in `layer.variables` anyway.
_IGNORED = {"_losses", "_loss_ids", "_called", "_parent_path", "_tracker"}
_IGNORED |= {"_inbound_nodes", "_outbound_nodes"}
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, type)
_JAX = ("jax.", "jaxlib.")
_OTHERS = ("keras.", *_JAX, "numpy.", "builtins", "keras_remat.")
_OF_CLASSES = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"}
# Of these the object itself counts: functions that are not Python, modules, methods of classes.
_OPAQUE = (
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    inspect.Signature,
    np.ufunc,
)


class _Traces:
    """The traces that a layer (or function) keeps, the one used last at the end.

    A trace holds the arrays that it found, as constants. So of those that differ in nothing else the last one
    is kept: an attribute that is another array at each step would otherwise live for many steps.
    """

    def __init__(self):
        self.entries = collections.OrderedDict()

    def find(self, key, arrays):
        found, entry = self.entries.pop(key, (None, None))
        if entry is None or found != arrays:
            return None
        self.entries[key] = found, entry
        return entry

    def add(self, key, arrays, entry):
        self.entries[key] = arrays, entry
        if len(self.entries) > _MOST:
            self.entries.popitem(last=False)

    def __deepcopy__(self, memo):
        return _Traces()

    def __reduce__(self):
        return _Traces, ()


class _Unknown(Exception):
    """Something that a trace may depend on is traced itself, or cannot be looked into."""


def run(call):
    """Run `call` by the trace of an earlier one, if there is any; return the one traced, and results."""
    tensors, held = call.tensors, []
    if isinstance(jax.numpy.zeros(()), core.Tracer):  # compiled: whoever compiles decides what is traced anew
        return call, _checkpointed(call)(*tensors)
    try:
        key, arrays = _key(call, held)
    except _Unknown:
        return call, _checkpointed(call)(*tensors)
    traces = _traces_of(call.block)
    entry = traces.find(key, arrays)
    if entry is not None:
        return entry[0], entry[1](*tensors)
    entry = call, _checkpointed(call), held  # what is held keeps its id
    call.is_kept, call.tensors, call.state.tensors = True, None, []
    randomness = repr(host_random.state())
    results = entry[1](*tensors)
    # Else the trace holds a loss, or the value of a variable, that is no input, or a number Python has drawn.
    if not call.state.entries and not call.state.earlier and repr(host_random.state()) == randomness:
        traces.add(key, arrays, entry)
    return call, results


def _checkpointed(call):
    def run(*tensors):
        return call(jax_lowering.with_late_seeds(list(tensors)))

    variables = call.state.tensors
    inputs = call.tensors[: len(call.tensors) - len(variables)]
    return jax.checkpoint(run, policy=jax_lowering.policy_of(inputs, variables))


def _traces_of(block):
    owner = block.layers[0] if block.layers else getattr(block.run, "__func__", block.run)
    return vars(owner).setdefault(_NAME, _Traces()) if hasattr(owner, "__dict__") else _Traces()


def _key(call, held):
    family, block = call.block.family, call.block
    digest = _Digest(held)
    layers = family.all_sublayers(block.layers)
    found = [digest(block.run), digest(call.leaves), call.spec, tuple(call.places)]
    found += [digest(family.call_key(call.call_state))]
    found += [digest.layer(layer) for layer in layers]
    found += [tuple(map(id, call.state.variables)), tuple(call.state.masked)]
    held.extend(call.state.variables)
    types_ = [(t.shape, t.dtype, getattr(t, "weak_type", False)) for t in call.tensors]
    return (*found, *types_), tuple(digest.arrays)


class _Digest:
    """Makes of any value one that is equal if the value is, and can be the key of a dict.

    Plain data counts by its value, functions by their code and what they find in closures and globals,
    objects by themselves and their attributes. Those are put into the list `held`: no other gets their id.
    What tells arrays from others of their shape and type goes to the list `arrays`.
    """

    def __init__(self, held):
        self.held, self.seen, self.arrays = held, set(), []

    def __call__(self, value):
        if isinstance(value, _CONSTANTS):
            return type(value), value
        if isinstance(value, core.Tracer):
            raise _Unknown
        if isinstance(value, dict):
            return "dict", tuple((self(k), self(v)) for k, v in value.items())
        if isinstance(value, (list, tuple)):
            return type(value), tuple(map(self, value))
        if isinstance(value, (set, frozenset)):
            return type(value), frozenset(map(self, value))
        if isinstance(value, (np.ndarray, jax.Array)):
            return self._array(value)
        if isinstance(value, types.MethodType):
            return self(value.__func__), self(value.__self__)
        if isinstance(value, (classmethod, staticmethod)):
            return self(value.__func__)
        if isinstance(value, property):
            return self([value.fget, value.fset])
        if isinstance(value, functools.partial):
            return self([value.func, value.args, value.keywords])
        if isinstance(value, types.FunctionType):
            return self._function(value)
        return self._object(value)

    def layer(self, layer):
        """Digest what a layer is: its attributes, and the code and attributes of classes of the user's."""
        classes = [cls for cls in type(layer).__mro__ if not cls.__module__.startswith(_OTHERS)]
        own = [(k, self(v)) for cls in classes for k, v in vars(cls).items() if k not in _OF_CLASSES]
        return self.attributes(layer), tuple(own)

    def attributes(self, holder):
        """Digest the attributes of an object."""
        items = vars(holder).items()
        return tuple((k, self(v)) for k, v in items if k not in _IGNORED and not k.startswith("_keras_remat"))

    def _array(self, array):
        if isinstance(array, np.ndarray):  # may be written in place
            self.arrays.append(hashlib.blake2b(np.ascontiguousarray(array)).digest())
        else:
            self.held.append(array)
            self.arrays.append(id(array))
        return type(array), array.shape, array.dtype

    def _function(self, function):
        self.held.append(function)
        code = function.__code__
        if not self._is_new(function) or function.__module__.startswith(_OTHERS[:-1]):
            return id(function)
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        names = function.__globals__
        found = [names[name] for name in code.co_names if name in names]
        return id(code), self([*cells, *found]), self(function.__defaults__), self(function.__kwdefaults__)

    def _object(self, value):
        self.held.append(value)
        is_variable = hasattr(value, "_value")
        if is_variable or isinstance(value, _OPAQUE) or type(value).__module__.startswith(_JAX):
            return id(value)
        if not hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            raise _Unknown
        if hasattr(value, "_flatten_layers") or not self._is_new(value):  # a layer is looked at by itself
            return id(value)
        return id(value), self.attributes(value)

    def _is_new(self, value):
        is_new = id(value) not in self.seen
        self.seen.add(id(value))
        return is_new


def _is_filled(cell):
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
