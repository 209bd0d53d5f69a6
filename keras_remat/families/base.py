"""The questions that a family of Keras answers."""

import contextlib

from keras_remat import backends


class Family:
    """One Keras: how its layers are called, and where they put what they make on the side.

    Subclasses answer every method that raises here. `root` is the package that holds the family's
    modules, such as `tf_keras.src`.
    """

    backend_name = "tensorflow"

    def __init__(self, root):
        self.root = root
        self.backend = backends.load(self.backend_name)

    def make_wrappers(self, runtime):
        """Make and register the family's classes Recompute and RecomputeSequential."""
        raise NotImplementedError

    def is_inference(self):
        """True if what is being called now is a model that predicts, evaluates or is saved."""
        raise NotImplementedError

    def sublayers(self, layer):
        """List `layer` and all layers inside it, each once."""
        raise NotImplementedError

    def loss_lists(self, layer):
        """List the Python lists in which `layer` itself collects losses."""
        raise NotImplementedError

    def variables(self, layers):
        """List the variables that `layers` own, trainable or not, metrics included."""
        raise NotImplementedError

    def call_state(self):
        """Note what Keras knows about the present call (training phase, automatic casts)."""
        raise NotImplementedError

    def entered(self, state):
        """Context manager: be again in the call that `state` was noted in."""
        raise NotImplementedError

    def may_differentiate(self):
        """True if a gradient may be asked of what is computed now."""
        return self.backend.may_differentiate(self.is_inference())

    def losses(self, layers):
        """Note the losses that `layers` hold now, to tell new ones from them."""
        return NewLosses(self, layers)

    def is_own_class(self, layer):
        """True if the class of `layer` is Keras's own, so that AutoGraph leaves it alone."""
        return type(layer).__module__.split(".")[: len(self.root.split("."))] == self.root.split(".")


class NewLosses:
    """The losses that layers add while a block runs."""

    def __init__(self, family, layers):
        self._family = family
        self._layers = list(layers)
        self._old = {id(loss) for losses in self._lists() for loss in losses}

    def _lists(self):
        layers = {id(x): x for layer in self._layers for x in self._family.sublayers(layer)}
        return [losses for layer in layers.values() for losses in self._family.loss_lists(layer)]

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
        """Put `tensors` in the places of the losses that `new` listed, in that order."""
        twins = {id(old): tensor for old, tensor in zip(self._new, tensors)}
        for losses in self._lists():
            for i, loss in enumerate(losses):
                if id(loss) in twins:
                    _copy_marks(loss, twins[id(loss)])
                    losses[i] = twins[id(loss)]

    def withdraw(self):
        """List the losses added since and take them back."""
        new = self.new()
        ids = {id(loss) for loss in new}
        for losses in self._lists():
            losses[:] = [loss for loss in losses if id(loss) not in ids]
        return new


def _copy_marks(old, new):
    for name in ("_unconditional_loss",):
        if hasattr(old, name):
            with contextlib.suppress(AttributeError):
                setattr(new, name, getattr(old, name))
