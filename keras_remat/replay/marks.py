"""Mark functions for AutoGraph, without importing TensorFlow."""


def unconverted(function):
    """Mark `function`, in place, as code that AutoGraph calls as it is."""
    # A literal attribute name would be mangled in a class.
    setattr(function, "__ag_compiled", True)  # up to TensorFlow 2.1
    function.autograph_info__ = None  # since TensorFlow 2.2
    return function
