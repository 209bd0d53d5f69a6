"""AutoGraph in blocks: the user's functions are converted as ever (ours are marked, see `marks`)."""

from tensorflow.python.autograph.impl import api

try:
    from tensorflow.python.autograph.core import ag_ctx
except ImportError:  # TensorFlow 1.14 has no conversion status; it converts whatever it is given
    ag_ctx = None


def converted_in_function(function):
    """Return `function` converted by AutoGraph as `tf.function` does it, whatever surrounds it."""
    if hasattr(api, "tf_convert"):
        return api.tf_convert(function, ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED))
    return api.convert(recursive=True)(function)


def converted(function):
    """Return `function` converted by AutoGraph where its surroundings ask for it."""
    if hasattr(api, "tf_convert"):
        return api.tf_convert(function, ag_ctx.control_status_ctx())
    return api.convert(recursive=True)(function)
