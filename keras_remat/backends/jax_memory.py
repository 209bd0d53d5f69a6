"""How much memory JAX has in use on its devices: where they tell, which a CPU does not."""

import jax

from keras_remat.errors import RematError

_PEAK = "peak_bytes_in_use"


def check():
    """Raise if nothing can be measured."""
    devices = jax.local_devices()
    if not all(_PEAK in (device.memory_stats() or {}) for device in devices):
        raise RematError(
            "Peaks are measured on devices that tell JAX their memory statistics, such as a GPU. "
            f"Received: {', '.join(map(str, devices))}. Leave the callback out."
        )


def reset():
    """Do nothing: JAX tells the peak since the process began."""


def peak():
    """Return the most bytes that were in use at once, on the device where that is most."""
    return max(device.memory_stats()[_PEAK] for device in jax.local_devices())
