"""Gradient tapes of TensorFlow: those of the caller stop while a block runs first, those made then do not.

A block, or the gradient of an op in it, may use a tape of its own; `stop_recording` would stop that one too.
"""

import contextlib
import functools
import threading

from tensorflow.python.eager import backprop

try:  # TensorFlow 2.12+
    from tensorflow.python.eager import record as tape_lib
except ImportError:
    from tensorflow.python.eager import tape as tape_lib

try:  # TensorFlow 2.1+
    from tensorflow.python.eager.forwardprop_util import pack_tangents
except ImportError:
    pack_tangents = None

# Tells whether a tape knows one of the tensors; the other name is that up to TensorFlow 2.0.
should_record = getattr(tape_lib, "should_record_backprop", None) or tape_lib.should_record

# The C functions behind `stop_recording`, which has no counterpart; the module has another name up to 2.1.
_c = getattr(tape_lib, "pywrap_tfe", None) or tape_lib.pywrap_tensorflow
_is_stopped = getattr(_c, "TFE_Py_TapeSetIsStopped", lambda: True)  # TensorFlow 1.15+


class _Stops(threading.local):
    def __init__(self):
        self.depth = 0


_STOPS = _Stops()


def is_forward_mode(tensors):
    """True if a `ForwardAccumulator` follows one of `tensors`."""
    return pack_tangents is not None and bool(pack_tangents(list(tensors)).tangents)


@contextlib.contextmanager
def stopped():
    """Let no tape record, but for those that are opened meanwhile."""
    with tape_lib.stop_recording():
        _STOPS.depth += 1
        try:
            yield
        finally:
            _STOPS.depth -= 1


def is_recorded_outside(tensors):
    """True if tapes that `stopped` has stopped, and no others since, know one of `tensors`."""
    if not _STOPS.depth or not _is_stopped():
        return False
    _c.TFE_Py_TapeSetRestartOnThread()
    try:
        return should_record(tensors)
    finally:
        _c.TFE_Py_TapeSetStopOnThread()


_push_tape, _pop_tape = backprop.GradientTape._push_tape, backprop.GradientTape._pop_tape


@functools.wraps(_push_tape)
def _push(self, *args, **kwargs):
    if _STOPS.depth and _is_stopped():
        _c.TFE_Py_TapeSetRestartOnThread()
        self._keras_remat_restarted = True
    return _push_tape(self, *args, **kwargs)


@functools.wraps(_pop_tape)
def _pop(self, *args, **kwargs):
    result = _pop_tape(self, *args, **kwargs)
    if vars(self).pop("_keras_remat_restarted", False):
        _c.TFE_Py_TapeSetStopOnThread()
    return result


backprop.GradientTape._push_tape, backprop.GradientTape._pop_tape = _push, _pop
