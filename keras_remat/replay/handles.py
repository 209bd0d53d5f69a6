"""Entry values for the second run of an eager block, without writing to anybody's variable.

Reads of variables happen in C++, by the attribute `_handle` of the Python object, so wrapping Python
functions is not enough. For the time of the second run that attribute gives, on this thread only, the
handle of a temporary resource that holds the entry value: reads see it, writes are lost with it, and
other threads and whoever holds the true handle see no change.
"""

import contextlib
import threading

from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops

from keras_remat.replay.tapes import tape_lib

# The name under which each handle is a resource of its own, as eager variables have it.
_anonymous = getattr(context, "anonymous_name", None)
if _anonymous is None:  # up to TensorFlow 2.4
    _anonymous = context.shared_name


class _Overrides(threading.local):
    """The handles that stand for those of variables on this thread, by the id of the variable."""

    def __init__(self):
        self.handles = {}


_OVERRIDES = _Overrides()


class _Handle:
    """The attribute `_handle` of resource variables, which a second run sees differently."""

    def __get__(self, variable, owner=None):
        if variable is None:
            return self
        handle = _OVERRIDES.handles.get(id(variable)) if _OVERRIDES.handles else None
        if handle is not None:
            return handle
        try:
            return vars(variable)["_handle"]
        except KeyError:
            raise AttributeError("_handle") from None

    def __set__(self, variable, handle):
        vars(variable)["_handle"] = handle

    def __delete__(self, variable):
        del vars(variable)["_handle"]


# The base class is of its own since TensorFlow 1.15.
_BASE = getattr(resource_variable_ops, "BaseResourceVariable", resource_variable_ops.ResourceVariable)
_BASE._handle = _Handle()


@contextlib.contextmanager
def standing_in(entries):
    """Let the variables of `entries` show their entry values, on this thread."""
    before = _OVERRIDES.handles
    temporaries = [_temporary(variable._handle, value) for variable, value in entries]
    _OVERRIDES.handles = dict(before)
    _OVERRIDES.handles.update((id(v), handle) for (v, _), handle in zip(entries, temporaries))
    try:
        yield
    finally:
        _OVERRIDES.handles = before
        for handle in temporaries:
            gen_resource_variable_ops.destroy_resource_op(handle, ignore_lookup_error=True)


def _temporary(handle, value):
    """Make a resource that holds `value`, and that tapes of the caller see as `handle`."""
    # A name that is new each time would make a kernel each time, which TensorFlow keeps.
    with ops.device(handle.device):
        temporary = gen_resource_variable_ops.var_handle_op(
            dtype=value.dtype, shape=value.shape, shared_name=_anonymous()
        )
        temporary._handle_data = handle._handle_data
        gen_resource_variable_ops.assign_variable_op(temporary, value)
    tape_lib.record_operation("KerasRematEntry", [temporary], [handle], lambda grad: [grad])
    return temporary


@contextlib.contextmanager
def written_back(entries):
    """Write entry values to resources whose variables are unknown, and the present values afterwards."""
    present = [
        (handle, gen_resource_variable_ops.read_variable_op(handle, value.dtype)) for handle, value in entries
    ]
    try:
        for handle, value in entries:
            gen_resource_variable_ops.assign_variable_op(handle, value)
        yield
    finally:
        for handle, value in present:
            gen_resource_variable_ops.assign_variable_op(handle, value)
