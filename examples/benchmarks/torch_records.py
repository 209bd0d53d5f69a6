"""A training step of PyTorch, and what it holds in tensors, by the buffers of what its ops put out."""

import weakref

import keras
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def make_step(model, x):
    """Return a function that runs a step and returns its loss and the sum of all gradients."""
    x = keras.tree.map_structure(torch.as_tensor, x)
    weights = [variable.value for variable in model.trainable_variables]

    def step():
        sums = []

        def drop(weight):
            sums.append(float(weight.grad.sum()))
            weight.grad = None

        hooks = [weight.register_post_accumulate_grad_hook(drop) for weight in weights]
        loss = (model(x, training=True).float() ** 2).mean()
        loss.backward()
        for hook in hooks:
            hook.remove()
        return loss, sum(sums)

    return step


def peak(step):
    """Return the most bytes that tensors which are made in a step take at a time."""
    with _Buffers() as buffers:
        step()
    return buffers.most


class _Buffers(TorchDispatchMode):
    """Adds up the buffers of what ops put out, as long as they are there; those of weights count nothing."""

    def __init__(self):
        super().__init__()
        self.held, self.most = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for tensor in _tensors((args, kwargs)):
            self._hold(tensor.untyped_storage(), 0)
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._hold(tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        self.most = max(self.most, sum(self.held.values()))
        return result

    def _hold(self, buffer, size):
        if buffer._cdata not in self.held:  # an address that another buffer may have later
            self.held[buffer._cdata] = size
            weakref.finalize(buffer, self.held.pop, buffer._cdata)


def _tensors(structure):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(structure) if torch.is_tensor(leaf)]
