"""The losses that layers add while a block runs: found, and put elsewhere."""

import contextlib


class NewLosses:
    """The losses that layers add while a block runs."""

    def __init__(self, family, layers):
        self._family = family
        self._layers = list(layers)
        self._before = [list(losses) for losses in self._lists()]
        self._old = {id(loss) for losses in self._before for loss in losses}

    def _lists(self):
        layers = self._family.all_sublayers(self._layers)
        return [losses for layer in layers for losses in self._family.loss_lists(layer)]

    def new(self):
        """List the losses added since, each once."""
        found = {}
        for losses in self._lists():
            for loss in losses:
                if id(loss) not in self._old and self._family.backend.is_tensor(loss):
                    found.setdefault(id(loss), loss)
        self._new = list(found.values())
        return self._new

    def replace(self, tensors):
        """Put the first of `tensors` in the places of the losses that `new` listed; return how many."""
        twins = {id(old): tensor for old, tensor in zip(self._new, tensors)}
        for losses in self._lists():
            for i, loss in enumerate(losses):
                if id(loss) in twins:
                    _copy_marks(loss, twins[id(loss)])
                    losses[i] = twins[id(loss)]
        return len(self._new)

    def withdraw(self):
        """List the losses added since, and let the lists be what they were."""
        new = self.new()
        for losses, before in zip(self._lists(), self._before):
            losses[:] = before
        return new


class _NoLosses:
    """Of a block whose state takes its losses along."""

    def new(self):
        return []

    withdraw = new

    def replace(self, tensors):
        return 0


NO_LOSSES = _NoLosses()


def _copy_marks(old, new):
    for name in ("_unconditional_loss",):
        if hasattr(old, name):
            with contextlib.suppress(AttributeError):
                setattr(new, name, getattr(old, name))
