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


def check_steps():
    """Raise if steps cannot be measured."""
    check()


def reset():
    """Begin to measure anew."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)


def peak():
    """Return the most bytes of tensors at once, since `reset`, on the device where that is most."""
    return max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))


def peak_of_step(model, specs):
    """Return the most bytes of tensors at once while a model trains a step, above what there was before.

    Args:
      specs: list of (shape, dtype) of what it takes.
    """
    device = next(model.parameters()).device
    inputs = [torch.full(shape, 0.5).to(getattr(torch, dtype)).to(device) for shape, dtype in specs]
    held = [parameter.grad for parameter in model.parameters()]
    before = torch.cuda.memory_allocated(device)
    reset()
    outputs = torch.utils._pytree.tree_leaves(model(inputs if len(inputs) > 1 else inputs[0], training=True))
    sum(t.float().square().mean() for t in outputs).backward()
    found = peak() - before
    for parameter, grad in zip(model.parameters(), held):
        parameter.grad = grad
    return found
