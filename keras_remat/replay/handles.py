"""Entry values for the second run of an eager block, without writing to anybody's variable.

Reads of variables happen in C++, by the handle of the Python object, so wrapping Python is not enough.
For the time of the second run each variable object gets a temporary resource that holds its entry
value: reads see it, writes are lost with it, and whoever holds the true handle sees no change.
"""

import contextlib
import threading

from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_resource_variable_ops

try:  # TensorFlow 2.12+
    from tensorflow.python.eager import record as tape_lib
except ImportError:
    from tensorflow.python.eager import tape as tape_lib


class _Swaps:
    """Variables whose handles stand for entry values, by the thread that swapped them."""

    def __init__(self):
        self.condition = threading.Condition()
        self.owners = {}

    def enter(self, variables):
        """Wait until no other thread has any of `variables`, then take them."""
        me = threading.get_ident()
        keys = [id(v) for v in variables]
        with self.condition:
            while any(self.owners.get(k, (me, 0))[0] != me for k in keys):
                self.condition.wait()
            for k in keys:
                self.owners[k] = (me, self.owners.get(k, (me, 0))[1] + 1)

    def leave(self, variables):
        """Give `variables` back."""
        with self.condition:
            for k in [id(v) for v in variables]:
                owner, count = self.owners.pop(k)
                if count > 1:
                    self.owners[k] = (owner, count - 1)
            self.condition.notify_all()


_SWAPS = _Swaps()


@contextlib.contextmanager
def standing_in(entries):
    """Let the variables of `entries` show their entry values through temporary resources."""
    variables = [v for v, _ in entries]
    _SWAPS.enter(variables)
    try:
        handles = [v._handle for v in variables]
        try:
            for (variable, value), handle in zip(entries, handles):
                variable._handle = _temporary(handle, value)
            yield
        finally:
            for variable, handle in zip(variables, handles):
                temporary, variable._handle = variable._handle, handle
                if temporary is not handle:
                    gen_resource_variable_ops.destroy_resource_op(temporary, ignore_lookup_error=True)
    finally:
        _SWAPS.leave(variables)


def _temporary(handle, value):
    """Make a resource that holds `value`, and that tapes of the caller see as `handle`."""
    temporary = gen_resource_variable_ops.var_handle_op(
        dtype=value.dtype, shape=value.shape, shared_name=f"keras_remat_{ops.uid()}"
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
