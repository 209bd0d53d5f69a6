"""Keras 3, whatever framework its layers run on.

What differs between frameworks is asked of the backend: TensorFlow's variables are looked after by `replay`;
elsewhere a block's variables, masks, losses and updates go in and out of it as tensors (see `keras3_state`).
"""

import contextlib
import copy

from keras_remat.errors import UnsupportedFamilyError
from keras_remat.families import base, keras3_costs, keras3_layers, keras3_models, keras3_state, replaced
from keras_remat.families.new_losses import NO_LOSSES

_BACKENDS = ("tensorflow", "jax", "torch")
_CONTEXT, _AUTOCAST, _SCOPE = "current_call_ctx", "autocast_scope", "stateless_scope"

# What Keras keeps for each thread: a gradient may be taken on another one.
_THREADS_OWN = (_CONTEXT, _AUTOCAST, "global_seed_generator", "torch_device", "distribution", "dtype_policy")


class Keras3(base.Family):
    """The Keras whose layers run on several frameworks; `root` is its package, `keras.src`."""

    def __init__(self, root):
        self.root = root
        self.backend_name = self.module("backend.config").backend()
        if self.backend_name not in _BACKENDS:
            raise UnsupportedFamilyError(
                f"Layers of Keras 3 are recomputed on {', '.join(_BACKENDS)}. Received: a layer of Keras on "
                f"{self.backend_name}. Choose one of these by KERAS_BACKEND."
            )
        super().__init__(root)
        self._globals = self.module("backend.common.global_state")
        self.scope_class = keras3_state.make_scope_class(self)
        for name in ("add_weight", "_maybe_build"):
            self.backend.keep_outside(self.layer_class, name)
        self.backend.watch_losses(self.layer_class, "_get_own_losses")

    @property
    def layer_class(self):
        """The base class of this Keras's layers."""
        return self.module("layers.layer").Layer

    def make_wrappers(self, runtime):
        return keras3_layers.make_classes(self, runtime)

    def is_model(self, layer):
        return isinstance(layer, self.module("models.model").Model)

    def is_symbolic(self):
        """True while Keras asks a layer for nothing but the shape of its output (since 3.4)."""
        return self._globals.get_global_attribute("symbolic_scope") is not None

    def may_differentiate(self):
        return not self.is_symbolic() and super().may_differentiate()

    def is_inference(self):
        training = getattr(self._globals.get_global_attribute(_CONTEXT), "training", None)
        return training is not None and not self.backend.is_tensor(training) and not training

    def sublayers(self, layer):
        return layer._flatten_layers() if isinstance(layer, self.layer_class) else []

    def loss_lists(self, layer):
        return [layer._losses]

    def all_variables(self, layers):
        """List the variables of `layers` as objects of Keras, those of metrics and generators included."""
        inner = self.all_sublayers(layers)
        found = [v for layer in inner for v in layer.variables]
        found += [v for layer in inner for metric in layer._metrics for v in metric.variables]
        return list({id(v): v for v in found}.values())

    def number_of(self, variable):
        return self.module("ops").convert_to_numpy(variable.value)

    def variables(self, layers):
        return [v._value for v in self.all_variables(layers) if v._value is not None]

    def state(self, layers, tensors):
        if self.backend.REPLAYS_VARIABLES and self.open_scope() is None:
            return base.NO_STATE
        return keras3_state.HeldState(self, layers, tensors)

    def losses(self, layers):
        # In a scope Keras adds losses to it, and the state of the block takes them from there.
        return NO_LOSSES if self.open_scope() is not None else super().losses(layers)

    def open_scope(self):
        """Return the innermost `StatelessScope` that is open, or None."""
        return self._globals.get_global_attribute(_SCOPE)

    @contextlib.contextmanager
    def scope_opened(self, scope):
        """Let `scope`, or None, be the innermost scope for a while."""
        before = self.open_scope()
        self._globals.set_global_attribute(_SCOPE, scope)
        try:
            yield
        finally:
            self._globals.set_global_attribute(_SCOPE, before)

    def outermost_layer(self):
        """Return the layer in whose call all others are called now, None outside of layers."""
        return getattr(self._globals.get_global_attribute(_CONTEXT), "entry_layer", None)

    def is_called(self, layer):
        """True if it is `layer.__call__` that runs what runs now, not somebody who runs `layer.call`."""
        scopes = self._globals.get_global_attribute("name_scope_stack")
        return bool(scopes) and scopes[-1].caller is layer

    def mask_of(self, tensor):
        """Return the mask that Keras keeps for a tensor, or None."""
        find = getattr(self.module("backend"), "get_keras_mask", None)  # since 3.6
        return find(tensor) if find else getattr(tensor, "_keras_mask", None)

    def set_mask(self, tensor, mask):
        """Let `mask` be the mask of `tensor`."""
        keep = getattr(self.module("backend"), "set_keras_mask", None)
        if keep:
            keep(tensor, mask)
        else:
            with contextlib.suppress(AttributeError):  # as Keras: arrays of JAX take no attributes
                tensor._keras_mask = mask

    def call_state(self, layers):
        context, *others = map(self._globals.get_global_attribute, _THREADS_OWN)
        return (copy.copy(context), *others)

    @contextlib.contextmanager
    def entered(self, state):
        before = list(map(self._globals.get_global_attribute, _THREADS_OWN))
        self._set(state)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, values):
        for name, value in zip(_THREADS_OWN, values):
            if value is not None or name in (_CONTEXT, _AUTOCAST):
                self._globals.set_global_attribute(name, value)

    def call_key(self, state):
        """List what a call depends on beside its arguments and layers: the context's words, the cast."""
        context, autocast = state[:2]
        words = {k: v for k, v in vars(context).items() if k != "entry_layer"} if context else {}
        return [words, getattr(autocast, "dtype", None)]

    def calls(self, model):
        return keras3_models.calls(self, model)

    def output_keys(self, model):
        return keras3_models.output_keys(self, model)

    def convert(self, model, segments, runtime):
        keras3_models.convert(self, model, segments, runtime)

    def input_specs(self, model, size):
        return keras3_costs.input_specs(self, model, size)

    def trace(self, call, specs, wanted, masked):
        return keras3_costs.trace(self, call, specs, wanted, masked)

    def arguments_of(self, call):
        return keras3_costs.arguments_of(self, call)

    def variable(self):
        return self.module("backend").Variable(self.module("initializers").Zeros(), (8, 8), "float32")

    def convert_layer(self, layer, runtime):
        super().convert_layer(layer, runtime)
        if hasattr(layer, "quantized_call"):  # since 3.4 what runs in the place of `call` after `quantize`
            replaced.make_block(self, layer, runtime, "quantized_call")

    def forget_functions(self, model):
        keras3_models.forget_functions(model)
