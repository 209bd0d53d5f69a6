"""What an optimizer keeps for each weight, asked of the optimizer itself: a twin of it trains a small one."""

import re

from keras_remat.errors import RematError

# What makes the variables of an optimizer: the second up to TensorFlow 2.10, the third up to 2.1.
_BUILDERS = ("build", "_create_all_weights", "_create_slots")


def slots(optimizer, weight):
    """Return how many bytes `optimizer` keeps for each byte of weights, such as `weight`, that it trains."""
    try:
        twin = type(optimizer).from_config(optimizer.get_config())
    except NotImplementedError as error:  # a schedule of the user's that cannot be saved
        raise RematError(
            "What an optimizer keeps is found by its config. Received: "
            f"{type(optimizer).__name__}, which has none ({error}). Give the schedule in it a get_config, or "
            "compile the model without it."
        ) from error
    next(getattr(twin, name) for name in _BUILDERS if hasattr(twin, name))([weight])
    return sum(map(bytes_of, (v for v in variables(twin) if len(v.shape)))) / bytes_of(weight)


def variables(optimizer):
    """List the variables of an optimizer: a method up to TensorFlow 2.10."""
    found = optimizer.variables
    return list(found() if callable(found) else found)


def bytes_of(variable):
    """Return the bytes of a variable of any Keras."""
    count = 1
    for size in variable.shape:
        count *= int(size)
    name = getattr(variable.dtype, "name", str(variable.dtype))
    bits = re.search(r"\d+", name)
    return -(-count * int(bits.group()) // 8) if bits else count
