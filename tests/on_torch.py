"""Marks and training steps on PyTorch: what is kept is told by hooks of the tensors that autograd saves."""

import contextlib
import weakref

import numpy as np
import steps
import torch
from torch.utils import _pytree as pytree


class Run:
    """One run of a marked layer: whether it was told to be the second, whether its tensor was saved."""

    graph = None
    live = []  # of this class: runs whose tensor autograd may yet save

    def __init__(self, inner):
        from keras_remat import is_recomputing  # not where it must not be imported

        self.again, self.saved = is_recomputing(), False
        self._inner = weakref.ref(inner)
        Run.live.append(self)

    def is_saved_as(self, tensor):
        inner = self._inner()
        return inner is not None and tensor.untyped_storage().data_ptr() == inner.untyped_storage().data_ptr()


def tensor(x):
    return torch.as_tensor(np.array(x))


@contextlib.contextmanager
def watching():
    """Note the marked tensors that are saved meanwhile, outside of blocks."""

    def pack(saved):
        for run in Run.live:
            run.saved = run.saved or run.is_saved_as(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        yield


def mark(target, layer):
    """Mark `layer`; the list that is returned gets a `Run` for each run of its call."""
    runs = []

    def note(output):
        if not isinstance(output, torch.Tensor) or not steps.is_float(output):
            return output
        inner = torch.nn.functional.softsign(output)
        runs.append(Run(inner))
        marked = torch.atan(inner)  # whose gradient needs its input
        Run.live.clear()
        if target.mask_of(output) is not None:
            target.set_mask(marked, target.mask_of(output))
        return marked

    steps.change_call(
        layer, lambda call: lambda *args, **kwargs: pytree.tree_map(note, call(*args, **kwargs))
    )
    return runs


class Watch:
    """Notes the inputs of layers, and tells which of them autograd saves."""

    def __init__(self):
        self.inputs = []

    def __call__(self, layer):
        def change(call):
            def noted(inputs, **kwargs):
                self.inputs.append(inputs)
                return call(inputs, **kwargs)

            return noted

        steps.change_call(layer, change)
        return layer

    def kept(self, target, mode, model, x):
        """The positions of the layers whose inputs are saved, "other" for all else but weights."""
        del self.inputs[:]
        saved = {}

        def pack(tensor):
            saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = model(tensor(x), training=True)
        positions = {t.untyped_storage().data_ptr(): i for i, t in reversed([*enumerate(self.inputs)])}
        weights = {w.value.untyped_storage().data_ptr() for w in model.weights}
        assert outputs.requires_grad
        return sorted((positions.get(place, "other") for place in set(saved) - weights), key=str)


def is_recomputed(function):
    """True if a gradient of `function` runs it again: if autograd keeps nothing but its input."""
    x, saved = torch.ones((2, 3), requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda unused: None):
        function(x)
    return all(t is x for t in saved)


def differentiate(function, arrays, mode):
    """Outputs of `function(*tensors)`, and gradients of the sum of their squares."""
    tensors = [tensor(a).requires_grad_(steps.is_float(a)) for a in arrays]
    outputs = [t for t in pytree.tree_leaves(function(*tensors)) if isinstance(t, torch.Tensor)]
    total = sum((t * t).sum() for t in outputs if steps.is_float(t))
    grads = torch.autograd.grad(total, [t for t in tensors if t.requires_grad], allow_unused=True)
    return [None if r is None else r.detach().numpy().copy() for r in (*outputs, *grads)]


def penalty(block, x, mode):
    """The loss with a gradient penalty, and its gradients."""
    x = tensor(x).requires_grad_()
    loss = torch.sin(block(x, training=True)).sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    total = loss + (slope * slope).sum()
    grads = torch.autograd.grad(total, [x, *(w.value for w in block.trainable_variables)])
    return [result.detach().numpy() for result in (total, *grads)]


def derivatives(function, x, order):
    """The function's values, and those of its derivatives up to `order`."""
    x = tensor(x).requires_grad_()
    found = [function(x)]
    for _ in range(order):
        found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
    return [one.detach().numpy() for one in found]


def jacobian(function, x, vectorized):
    return torch.autograd.functional.jacobian(function, tensor(x), vectorize=vectorized).numpy()


class Loop:
    """A loss, `backward`, and a step by hand."""

    def __init__(self, target, mode, model, before_gradient=None):
        self.model = model
        self.before_gradient = before_gradient or (lambda: None)

    def train(self, x, y, count):
        return [self._train_once(x, tensor(y)) for _ in range(count)]

    def _train_once(self, x, y):
        x = [tensor(part) for part in x]
        floats = [part.requires_grad_() for part in x if steps.is_float(part)]
        weights = [w.value for w in self.model.trainable_variables]
        for weight in weights:
            weight.grad = None
        with watching():
            outputs = self.model(x if len(x) > 1 else x[0], training=True)
            loss = torch.mean(torch.square(outputs.float() - y)) + sum(self.model.losses)
        del outputs
        self.before_gradient()
        loss.backward()
        grads = [leaf.grad for leaf in [*floats, *weights]]
        with torch.no_grad():
            for weight in weights:
                if weight.grad is not None:
                    weight -= steps.RATE * weight.grad
        return steps.Step(loss.item(), [None if g is None else g.numpy().copy() for g in grads])

    def predict(self, x):
        x = [tensor(part) for part in x]
        with torch.no_grad():
            return np.array(self.model(x if len(x) > 1 else x[0], training=False))
