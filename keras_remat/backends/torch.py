"""PyTorch: non-reentrant checkpointing, with everything that a block finds put back for its second run."""

import contextlib
import functools
import inspect
import threading

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from keras_remat.backends.base import (  # noqa: F401
    check_captured,
    convertible,
    keep_outside,
    marked,
    marks,
    watch_losses,
)
from keras_remat.errors import RecomputeMismatchError, RematError
from keras_remat.replay import host_random

#: Variables are written in place, so a block's are kept by its state; they need not be inputs: autograd
#: finds the parameters that a block uses by itself.
REPLAYS_VARIABLES = False
VARIABLES_ARE_INPUTS = False
#: True if tensors in objects which `flatten` does not look into are outputs of a block all the same.
FOLLOWS_OBJECTS = True


# Stopping as soon as the last saved tensor is there would leave caches of layers half made. Up to 2.8 that is
# set for all threads, and only while a block runs for the first time.
if "early_stop" in inspect.signature(checkpoint).parameters:
    _checkpoint = functools.partial(checkpoint, early_stop=False)
else:

    def _checkpoint(*args, **kwargs):
        from torch.utils.checkpoint import set_checkpoint_early_stop

        with set_checkpoint_early_stop(False):
            return checkpoint(*args, **kwargs)


# The hooks that checkpoint has set for the tensors that a second run saves; no public name, since 2.1.
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # since 2.7


class _Replaying(threading.local):
    depth = 0


_REPLAYING = _Replaying()


def is_replaying():
    """True while a block runs again on this thread."""
    return _REPLAYING.depth > 0


def may_differentiate(is_inference):
    """True if a gradient may be asked of what is computed now: not of a program that is being exported."""
    return torch.is_grad_enabled() and not torch.jit.is_tracing() and not _is_exporting()


def run(call, variables, name):
    """Run `call` (see `pure`), to be run again for its gradient; return it and its results."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise RematError(
            "PyTorch recomputes blocks for `backward` and `torch.autograd.grad` only. Received: block "
            f"{name!r} inside a transformation of torch.func. Call the model under recompute_enabled(False) "
            "there."
        )
    runs = _Runs(call, name)
    return call, list(_checkpoint(runs, *call.tensors, use_reentrant=False, preserve_rng_state=True))


class _Runs:
    """The two runs of a block: the second with the numbers and buffers that the first one found."""

    def __init__(self, call, name):
        self.call, self.name = call, name
        self.randomness = host_random.state()
        block = call.block
        self.buffers = _Buffers([*modules(block.family.all_sublayers(block.layers)), *block.modules])
        self.samples = None

    def __call__(self, *tensors):
        if self.samples is None:
            versions = list(map(version, tensors))
            results = self.call(list(tensors))
            if versions != list(map(version, tensors)):
                raise RematError(
                    "A recomputed block must leave its inputs as they are for its second run. Received: "
                    f"block {self.name!r} that writes one in place. Let it make a new one (inplace=False)."
                )
            self.samples = [_sample(t) for t in results]
            self.buffers.keep_written()
            return results
        _REPLAYING.depth += 1
        try:
            with host_random.again(self.randomness), self.buffers.standing_in(), _let_go():
                results = self.call(list(tensors))
        finally:
            _REPLAYING.depth -= 1
        self._check([_sample(t) for t in results])
        return results

    def _check(self, samples):
        same = len(samples) == len(self.samples)
        for one, other in zip(self.samples, samples):
            same = same and one[:2] == other[:2] and _is_close(one[2], other[2], one[1])
        if not same:
            raise RecomputeMismatchError(
                "A recomputed block must do in its second run what it did in its first. Received: block "
                f"{self.name!r} gave {[s[0] for s in samples]} with samples {[s[2] for s in samples]} where "
                f"the first run gave {[s[0] for s in self.samples]} with {[s[2] for s in self.samples]}. "
                "Make the call independent of Python state that changes between calls (`is_recomputing()` "
                "tells the runs apart), or leave the layer out."
            )


@contextlib.contextmanager
def _let_go():
    """Let the graph of a second run, which nobody differentiates after it, have no tensors then.

    Keras's `tree` makes cycles that hold tensors, and with them that graph, until Python looks for garbage.
    """
    hooks = _top_hooks(False) if _top_hooks else None
    if hooks is None:
        yield
        return
    pack, unpack = hooks
    held = []

    def hold(tensor):
        held.append([pack(tensor)])
        return held[-1]

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda one: unpack(one[0])):
        yield
    for one in held:
        one.clear()


class _Buffers:
    """Buffers of PyTorch modules, which are no variables of Keras: running statistics."""

    def __init__(self, outermost):
        inner = [m for module in outermost for m in module.modules()]
        places = {id(b): (m, k) for m in inner for k, b in m._buffers.items() if b is not None}
        self.entries = [(m, k, m._buffers[k].detach().clone()) for m, k in places.values()]

    def keep_written(self):
        """Keep only those that the first run wrote. Kernels write without a change of version."""
        self.entries = [(m, k, b) for m, k, b in self.entries if not torch.equal(m._buffers[k], b)]

    @contextlib.contextmanager
    def standing_in(self):
        """Let the modules have their entry values, and afterwards the present ones again."""
        present = [m._buffers[k] for m, k, _ in self.entries]
        for m, k, entry in self.entries:
            m._buffers[k] = entry.clone()
        try:
            yield
        finally:
            for (m, k, _), buffer in zip(self.entries, present):
                m._buffers[k] = buffer


def modules(values):
    """List the modules among `values`."""
    return [value for value in values if isinstance(value, torch.nn.Module)]


_SAMPLE = 8


def _sample(tensor):
    """Read shape, type and a few elements of a result, to see whether the second run repeats the first."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if not tensor.dtype.is_floating_point or tensor.device.type != "cpu":  # elsewhere reading would wait
        return shape, dtype, None
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // _SAMPLE)
    return shape, dtype, flat[::step][:_SAMPLE].to(torch.float64).numpy().copy()


def _is_close(first, second, dtype):
    """Compare within what a change of kernels may do; changed state differs by far more."""
    if first is None or not first.size:
        return True
    tolerance = 1e-4 if dtype in (torch.float32, torch.float64) else 5e-2
    scale = np.max(np.abs(first[np.isfinite(first)]), initial=0.0)
    return np.allclose(first, second, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def flatten(structure):
    """List the leaves of nested lists, tuples and dicts; return what packs them as well."""
    return pytree.tree_flatten(structure)


def pack(spec, leaves):
    """Put `leaves` in the places of those that `flatten` listed."""
    return pytree.tree_unflatten(leaves, spec)


def is_tensor(value):
    """True for tensors, parameters included."""
    return isinstance(value, torch.Tensor)


class _Assigned(torch.autograd.Function):
    """A value of a parameter: its gradient is the parameter's."""

    @staticmethod
    def forward(ctx, value, parameter):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, grad):
        return None, grad


def assigned(value, variable):
    """Return `value` as `variable` has it after an assignment: its gradient is that of the variable."""
    value = value.detach()
    return _Assigned.apply(value, variable) if variable is not None and variable.requires_grad else value


def version(value):
    """Return a number that changes when the tensor is written in place."""
    return None if value.is_inference() else value._version


def copied(value):
    """Return a copy of a tensor that is about to be written."""
    return value.detach().clone()
