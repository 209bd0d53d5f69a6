"""What a backend answers if its framework needs nothing done: JAX and PyTorch."""


def check_captured(name, find):
    """Nothing to check: gradients of tensors that a block finds elsewhere are followed."""


def modules(values):
    """Return none: only PyTorch has modules, with buffers that are no variables."""
    return ()


def marks(tensor):
    """Return nothing: masks are part of a block's state."""
    return {}


def marked(tensor, found):
    """Return `tensor`."""
    return tensor


def convertible(function):
    """Return `function`: Python runs, or is traced, as it is."""
    return function


def watch_losses(cls, name):
    """Nothing to watch: gradients of losses that a block finds are followed."""


def keep_outside(cls, name):
    """Nothing to do: of what a block does beside computing, nothing is noted."""
