"""AutoGraph in blocks: the user's functions are converted as ever (ours are marked, see `marks`)."""

from tensorflow.python.autograph.impl import api

try:
    from tensorflow.python.autograph.core import ag_ctx
except ImportError:  # TensorFlow 1.14 has no conversion status; it converts whatever it is given
    ag_ctx = None


def converted_in_function(function):
    """Return `function` converted by AutoGraph as `tf.function` does it, whatever surrounds it."""
    return _convert(function, lambda: ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED))


def converted(function):
    """Return `function` converted by AutoGraph where its surroundings ask for it."""
    return _convert(function, lambda: ag_ctx.control_status_ctx())


def _convert(function, status):
    if hasattr(api, "tf_convert"):
        return api.tf_convert(function, status())
    return api.convert(recursive=True)(function)
