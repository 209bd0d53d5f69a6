"""Random numbers of Python and NumPy in a block: the second run draws them again, the program does not.

Layers draw seeds (`np.random.randint`) and decisions (stochastic depth) from the global generators.
"""

import contextlib
import random

import numpy as np


def state():
    """Return the state of the global generators."""
    return random.getstate(), np.random.get_state()


def _restore(saved):
    random.setstate(saved[0])
    np.random.set_state(saved[1])


@contextlib.contextmanager
def again(saved):
    """Draw as from `saved` on, and go on afterwards as if nothing had been drawn."""
    present = state()
    _restore(saved)
    try:
        yield
    finally:
        _restore(present)
