"""What a call costs on PyTorch, by a run on tensors without data, whose saved tensors are noted."""

import weakref

import torch
from torch._subclasses.fake_tensor import (  # 2.1+; no public names
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode  # 2.0+; no public name
from torch.utils.flop_counter import flop_registry

from keras_remat.backends.costs import Traced


def trace(run, specs, wanted, values, trained):
    """Run `run(values, *tensors)` on tensors without data; see `costs.Traced`."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [_empty(*spec, is_wanted) for spec, is_wanted in zip(specs, wanted)]
        weights = [_empty(tuple(v.shape), v.dtype, is_trained) for v, is_trained in zip(values, trained)]
        return _trace(run, inputs, weights)


def _empty(shape, dtype, is_wanted):
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    return torch.empty(shape, dtype=dtype, requires_grad=is_wanted and dtype.is_floating_point)


def _trace(run, inputs, weights):
    saved, again = {}, 0

    def note(tensor):
        nonlocal again
        saved.setdefault(_key(tensor), tensor)
        again = meter.work  # a second run ends where the last tensor is saved
        return tensor

    given = {_key(t): i for i, t in enumerate(inputs)}
    resident = {_key(t) for t in weights}
    alive = _Alive({*given, *resident})
    with torch.enable_grad(), alive, _Meter() as meter:
        with torch.autograd.graph.saved_tensors_hooks(note, _unpack):
            outputs = list(run(weights, *inputs))
    made = [_key(t) for t in outputs]
    inner = [t for key, t in saved.items() if key not in given and key not in resident and key not in made]
    traced = Traced(
        outputs=[(tuple(t.shape), t.dtype) for t in outputs],
        views=[given.get(key) for key in made],
        sizes=[0 if key in resident else t.numel() * t.element_size() for key, t in zip(made, outputs)],
        inner=sum(map(size_of, inner)),
        needs_inputs=[_key(t) in saved for t in inputs],
        needs_outputs=[key in saved for key in made],
        work=meter.work,
        tail=meter.work - again,
        is_differentiable=any(t.requires_grad for t in outputs),
        transient=0,
    )
    saved.clear()
    del inner
    return traced._replace(transient=_transient(traced, alive, inputs, weights, outputs))


def _transient(traced, alive, inputs, weights, outputs):
    """Return what a call holds at the most beside what it keeps: in its run, or in that of its gradient.

    A second run ends with all that is kept in front of a call in its place, as it is at the call's gradient.
    """
    made = {_key(t): size_of(t) for t in outputs if _key(t) in alive.sizes}
    running = alive.most - traced.inner - sum(made.values())
    targets = [t for t in outputs if t.requires_grad]
    if not targets:
        return max(0, running)
    read = {_key(t): t for t, is_read in zip(inputs, traced.needs_inputs) if is_read and t.requires_grad}
    put_out = {key for key, is_read in zip(map(_key, outputs), traced.needs_outputs) if is_read}
    unread = sum(size for key, size in made.items() if key not in put_out)
    for weight in weights:
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(_drop_gradient)
    with alive, _Meter():
        alive.most = 0
        incoming = [torch.ones_like(t) for t in targets]
        torch.autograd.backward(targets, incoming)
    places = sum(map(size_of, incoming)) + sum(size_of(t) for t in inputs if t.requires_grad)
    held = alive.most - unread + sum(map(size_of, read.values()))
    return max(0, running, held - places - traced.inner)


def _drop_gradient(weight):
    weight.grad = None


class _Alive(TorchDispatchMode):
    """Adds up the buffers that ops make, as long as they are there; `most` is the most since it was set."""

    def __init__(self, known):
        super().__init__()
        self.known, self.sizes, self.most = known, {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            key = _key(tensor)
            if key not in self.known and key not in self.sizes:
                self.sizes[key] = size_of(tensor)
                weakref.finalize(tensor.untyped_storage(), self.sizes.pop, key, None)
        self.most = max(self.most, sum(self.sizes.values()))
        return result


def _unpack(tensor):
    return tensor


def _key(tensor):
    return tensor.untyped_storage()._cdata


def size_of(tensor):
    """Bytes of the buffer of a tensor."""
    return tensor.untyped_storage().nbytes()


class _Meter(TorchDispatchMode):
    """Adds up the work of all ops: FLOPs, and 20 for each byte that they read or write.

    Ops of tensors that have data, such as those of Keras's seeds, are computed.
    """

    def __init__(self):
        super().__init__()
        self.work = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        if given and not any(isinstance(tensor, FakeTensor) for tensor in given):
            with unset_fake_temporarily():
                return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if not _is_view(function):
            self.work += 20 * sum(t.numel() * t.element_size() for t in given + _tensors(result))
            count = flop_registry.get(function.overloadpacket)
            self.work += count(*args, **kwargs, out_val=result) if count else 0
        return result


def _tensors(structure):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(structure) if torch.is_tensor(leaf)]


def _is_view(function):
    return getattr(function, "is_view", False)
