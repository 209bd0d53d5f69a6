"""Gradient tapes of TensorFlow: those of the caller stop while a block runs first, those inside it do not."""

from tensorflow.python.eager import backprop

from keras_remat.replay import scope as scopes
from keras_remat.replay.wrapping import is_eager_block, wrap

try:  # TensorFlow 2.12+
    from tensorflow.python.eager import record as tape_lib
except ImportError:
    from tensorflow.python.eager import tape as tape_lib

# The C functions behind `stop_recording`, which has no counterpart; the module has another name up to 2.1.
_c = getattr(tape_lib, "pywrap_tfe", None) or tape_lib.pywrap_tensorflow

_is_stopped = getattr(_c, "TFE_Py_TapeSetIsStopped", lambda: True)  # TensorFlow 1.15+

try:  # TensorFlow 2.1+
    from tensorflow.python.eager.forwardprop_util import pack_tangents
except ImportError:
    pack_tangents = None


def is_forward_mode(tensors):
    """True if a `ForwardAccumulator` follows one of `tensors`."""
    return pack_tangents is not None and bool(pack_tangents(list(tensors)).tangents)


def _push(original, self, *args, **kwargs):
    if is_eager_block() and scopes.scopes()[-1].mode == scopes.RECORD and _is_stopped():
        _c.TFE_Py_TapeSetRestartOnThread()
        self._keras_remat_restarted = True
    return original(self, *args, **kwargs)


def _pop(original, self, *args, **kwargs):
    result = original(self, *args, **kwargs)
    if self.__dict__.pop("_keras_remat_restarted", False):
        _c.TFE_Py_TapeSetStopOnThread()
    return result


wrap(backprop.GradientTape, "_push_tape", _push)
wrap(backprop.GradientTape, "_pop_tape", _pop)
