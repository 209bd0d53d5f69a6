"""AutoGraph and blocks: our own functions are left as they are, the user's are converted as ever."""

from tensorflow.python.autograph.impl import api

try:
    from tensorflow.python.autograph.core import ag_ctx
except ImportError:  # TensorFlow 1.14 has no conversion status; it converts whatever it is given
    ag_ctx = None


def converted(function):
    """Return `function` converted by AutoGraph where its surroundings ask for it."""
    if hasattr(api, "tf_convert"):
        return api.tf_convert(function, ag_ctx.control_status_ctx())
    return api.convert(recursive=True)(function)


def unconverted(function):
    """Mark `function`, in place, as code that AutoGraph calls as it is."""
    setattr(function, "__ag_compiled", True)  # up to TensorFlow 2.1; a literal name would be mangled in a class
    function.autograph_info__ = None  # since TensorFlow 2.2
    return function
