"""Variables, losses, updates and masks of a block of Keras 3, as tensors that go in and out of it.

A block runs in a `StatelessScope` of its own, so what it writes stays there until it is committed, once.
Variables that the block takes in as tensors have those as values; all others keep, for the second run, the
value that they had when they were first read.
"""

import contextlib
import functools
import weakref

from keras_remat.errors import RecomputeMismatchError
from keras_remat.families import base
from keras_remat.replay.marks import unconverted


def make_scope_class(family):
    """Return the class of the scopes in which blocks of `family` run."""

    class Scope(family.module("backend.common.stateless_scope").StatelessScope):
        """Values by id of their variables; `entries` is what unmapped variables had on first reading.

        Likewise `earlier`: by id of a layer, what was found of losses from before the block.
        """

        def __init__(self, values, entries, earlier, again):
            super().__init__(collect_losses=True)
            self.values, self.entries, self.updates, self.again = values, entries, {}, again
            self.earlier = earlier
            self.outer = family.open_scope()
            self.outermost = {}  # by id of a loss: the outermost layer in whose call it was added
            #: The scope of the caller's own, if he has one.
            self.callers = self.outer.callers if isinstance(self.outer, Scope) else self.outer

        def add_loss(self, loss):
            super().add_loss(loss)
            self.outermost[id(loss)] = family.outermost_layer()

        def earlier_losses(self, layer):
            """List the losses that `layer` had when the block first asked for them, but for the block's."""
            if id(layer) not in self.earlier:
                with family.scope_opened(self.outer):
                    self.earlier[id(layer)] = layer, layer._get_own_losses()
            return self.earlier[id(layer)][1]

        def add_update(self, update):
            variable, value = update
            if self.callers is None:  # else gradients pass through assignments
                value = family.backend.assigned(value, variable._value)
            self.updates[id(variable)] = variable, value

        def get_current_value(self, variable):
            key = id(variable)
            if key in self.updates:
                return self.updates[key][1]
            if key in self.values:
                return self.values[key]
            if key not in self.entries:
                value = _present_value(self.outer, variable)
                if value is None:  # to be initialized when the caller's scope ends
                    return None
                self.entries[key] = _Entry(family.backend, variable, value)
            return self.entries[key].value

    _create_outside(family, Scope)
    _find_earlier_losses(family, Scope)
    if not family.backend.VARIABLES_ARE_INPUTS:
        _keep_what_is_written(family)
    return Scope


_LIVE = {}  # by the id of a variable: its entries in blocks whose gradient may yet be taken


def _keep_what_is_written(family):
    """Let blocks keep a copy of the value that they read before somebody writes the variable in place."""
    variable_class = family.module("backend").Variable
    write = variable_class._direct_assign

    @functools.wraps(write)
    def _direct_assign(self, value):
        for entry in _LIVE.pop(id(self), ()):
            entry.keep()
        return write(self, value)

    variable_class._direct_assign = _direct_assign


def _create_outside(family, scope_class):
    """Let variables that a block creates, in its first run, be created as if there were no block."""
    variable_class = family.module("backend").Variable
    create = variable_class.__init__

    @functools.wraps(create)
    def __init__(self, *args, **kwargs):
        scope = family.open_scope()
        if not isinstance(scope, scope_class):
            return create(self, *args, **kwargs)
        if scope.again:
            raise RecomputeMismatchError(
                "A layer in a recomputed block must make its weights in its first run. Received: a weight "
                f"{kwargs.get('name')!r} made in the second run. Make it in `build`."
            )
        with family.scope_opened(scope.callers):
            return create(self, *args, **kwargs)

    variable_class.__init__ = unconverted(__init__)


def _find_earlier_losses(family, scope_class):
    """Let layers whose losses a block reads have those that were added before it, not the block's alone."""
    layer_class = family.layer_class
    find = layer_class._get_own_losses

    @functools.wraps(find)
    def _get_own_losses(self):
        scope = family.open_scope()
        earlier = scope.earlier_losses(self) if isinstance(scope, scope_class) else []
        return [*earlier, *find(self)]

    layer_class._get_own_losses = unconverted(_get_own_losses)


def _present_value(scope, variable):
    value = scope.get_current_value(variable) if scope is not None else None
    return variable._value if value is None else value


class _Entry:
    """The value of a variable when a block first read it, and which version of the buffer that was."""

    def __init__(self, backend, variable, value):
        self.backend, self.variable, self.value = backend, variable, value
        self.version = backend.version(value)
        if self.version is not None:
            _LIVE.setdefault(id(variable), weakref.WeakSet()).add(self)

    def keep(self):
        """Copy the value, before the variable is written in place."""
        self.value = self.backend.assigned(self.backend.copied(self.value), self.variable._value)
        self.version = self.backend.version(self.value)

    def check(self, name):
        """Raise if somebody wrote the variable in place since."""
        if self.backend.version(self.value) != self.version:
            raise RecomputeMismatchError(
                "A variable that a recomputed block reads must not be written before the block's gradient is "
                f"taken. Received: another value of {self.variable.path!r}, which block {name!r} reads. Take "
                "the gradient first, or leave the layer out of the block."
            )


class HeldState(base.State):
    """The state of one call: which variables it takes in, and what it gave out."""

    def __init__(self, family, layers, inputs):
        self.family, self.layers = family, family.all_sublayers(layers)
        self.name = ", ".join(layer.name for layer in layers) or "function"
        scope = family.open_scope()
        self.variables = family.all_variables(layers) if family.backend.VARIABLES_ARE_INPUTS else []
        values = [_present_value(scope, v) for v in self.variables]
        pairs = [(v, x) for v, x in zip(self.variables, values) if family.backend.is_tensor(x)]
        self.variables = [v for v, _ in pairs]
        masks = [family.mask_of(tensor) for tensor in inputs]
        self.masked = [i for i, mask in enumerate(masks) if mask is not None]
        self.tensors = [x for _, x in pairs] + [masks[i] for i in self.masked]
        self.entries, self.earlier = {}, {}
        self._scope, self._notes = None, ([], [], [])

    @contextlib.contextmanager
    def opened(self, given, carried, again):
        masks = dict(zip(self.masked, carried[len(self.variables) :]))
        # In the second run these may be the caller's own tensors, which he may have masked since.
        present = [self.family.mask_of(tensor) for tensor in given] if again else []
        self._set_masks(given, [masks.get(i) for i in range(len(given))])
        if again:
            for entry in self.entries.values():
                entry.check(self.name)
        values = {id(v): x for v, x in zip(self.variables, carried)}
        self._scope = self.family.scope_class(values, self.entries, self.earlier, again)
        # A layer that a function calls forgets the losses of its call before.
        losses = [(layer, list(layer._losses)) for layer in self._notes[1]] if again else []
        try:
            with self._scope:
                yield
        finally:
            self._scope = None
            self._set_masks(given, present)
            for layer, kept in losses:
                layer._losses[:] = kept

    def _set_masks(self, tensors, masks):
        for tensor, mask in zip(tensors, masks):
            if self.family.mask_of(tensor) is not mask:
                self.family.set_mask(tensor, mask)

    def results(self, outputs):
        masks = [self.family.mask_of(tensor) for tensor in outputs]
        places = [i for i, mask in enumerate(masks) if mask is not None]
        losses, updates = self._scope.losses, list(self._scope.updates.values())
        self._notes = places, [self._take_owner(loss) for loss in losses], [v for v, _ in updates]
        return [masks[i] for i in places] + losses + [value for _, value in updates]

    def _take_owner(self, loss):
        """Return the layer that added `loss` to the scope, and let it forget that one."""
        outermost = self._scope.outermost[id(loss)]
        layers = [*self.layers, *self.family.sublayers(outermost)]
        owners = [layer for layer in layers if id(loss) in layer._loss_ids]
        for layer in owners:
            layer._loss_ids.discard(id(loss))
        return (owners or layers)[0]

    def commit(self, outputs, results):
        places, owners, variables = self._notes
        results = iter(results)
        for i in places:
            self.family.set_mask(outputs[i], next(results))
        for layer in owners:
            layer.add_loss(next(results))
        for variable in variables:
            variable.assign(next(results))
