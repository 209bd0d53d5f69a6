"""How much memory PyTorch's tensors take on GPUs. On a CPU PyTorch does not count."""

import torch

from keras_remat.errors import RematError


def check():
    """Raise if nothing can be measured."""
    if not torch.cuda.is_available():
        raise RematError(
            "Peaks are measured by PyTorch on GPUs that CUDA or ROCm drives. Received: a machine "
            "without one. Leave the callback out."
        )


def reset():
    """Begin to measure anew."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)


def peak():
    """Return the most bytes of tensors at once, since `reset`, on the device where that is most."""
    return max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
