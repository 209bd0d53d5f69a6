"""Recompute and RecomputeSequential for Keras 2.3.1.

A layer of Keras 2.3.1 is called in two ways: by `__call__`, which notes the call in the layers' nodes, and
by `call`, which models and wrappers use for the layers inside them. The wrappers here do the latter. What
depends on a layer's input (updates, losses) is found by the identity of the input tensor, and that is the
same for a wrapper and for the layer in it, so the wrapper asks the layer for both.
"""

from keras_remat.families import wrapping


def make_classes(family, runtime):
    """Return the wrapper classes for the layers of `family`."""
    layer_class = family.layer_class
    wrapper_class = family.module("layers.wrappers").Wrapper
    backend = family.module("backend")
    training = family.module("engine.training")

    class Recompute(wrapper_class):
        __doc__ = "Runs `layer` so that only its inputs are kept for the backward pass."
        state_size = wrapping.no_cell

        def __init__(self, layer, policy=None, name=None, **kwargs):
            wrapping.check_layer(family, layer, "Recompute")
            wrapping.check_policy(policy)
            wrapping.note_wrapper(family, layer, self)
            # Keras sets `trainable` of a new layer, which is that of the inner one here.
            kwargs.setdefault("trainable", layer.trainable)
            if hasattr(layer, "batch_input_shape"):
                kwargs.setdefault("batch_input_shape", layer.batch_input_shape)
            kwargs.setdefault("dtype", layer.dtype)
            super().__init__(layer, name=name or wrapping.wrapper_name(layer), **kwargs)
            self.policy = policy
            self.supports_masking = True
            self._metrics = layer._metrics

        @property
        def call(self):
            """The layer's `call` as a block, with its signature: Keras looks for `mask` there."""

            def call(*args, **kwargs):
                return runtime.call(self.name, self.layer.call, (self.layer,), family, args, kwargs)

            return wrapping.with_signature_of(call, self.layer.call)

        def __call__(self, inputs, initial_state=None, constants=None, **kwargs):
            extra = _listed(initial_state) + _listed(constants)
            if not extra:
                return super().__call__(inputs, **kwargs)
            if not all(backend.is_keras_tensor(x) for x in extra):
                named = {"initial_state": initial_state, "constants": constants}
                kwargs.update({k: _listed(v) for k, v in named.items() if v is not None})
                return super().__call__(inputs, **kwargs)
            if constants is not None:
                self.layer._num_constants = len(_listed(constants))
            return super().__call__([inputs] + extra, **kwargs)

        def build(self, input_shape=None):
            _build(self.layer, input_shape)
            super().build(input_shape)

        def assert_input_compatibility(self, inputs):
            """Check what the layer checks, unless its own `__call__` changes the check."""
            if type(self.layer).__call__ is layer_class.__call__:
                self.layer.assert_input_compatibility(inputs)

        def compute_output_shape(self, input_shape):
            return self.layer.compute_output_shape(input_shape)

        def compute_mask(self, inputs, mask=None):
            # The masks of a model are in its cache since its call with the same tensors.
            return self.layer.compute_mask(inputs, mask)

        @property
        def uses_learning_phase(self):
            return getattr(self.layer, "uses_learning_phase", False)

        @property
        def stateful(self):
            return getattr(self.layer, "stateful", False)

        @stateful.setter
        def stateful(self, value):
            pass  # set by Keras for every new layer; the inner layer's counts

        def reset_states(self, *args, **kwargs):
            """Set the states of a stateful layer back."""
            self.layer.reset_states(*args, **kwargs)

        @property
        def weights(self):
            return self.layer.weights

        @property
        def losses(self):
            return self.layer.losses + self._losses

        def get_losses_for(self, inputs=None):
            return self.layer.get_losses_for(inputs) + layer_class.get_losses_for(self, inputs)

        @property
        def metrics(self):
            return training._get_metrics_from_layers([self.layer])

        def get_config(self):
            config = super().get_config()
            config["policy"] = self.policy
            return config

    class RecomputeSequential(layer_class):
        __doc__ = "Runs a list of layers so that only the inputs of its segments are kept."

        def __init__(self, layers, segments="auto", policy=None, name=None, **kwargs):
            self.layers = wrapping.check_layers(family, layers, "RecomputeSequential")
            wrapping.check_policy(policy)
            wrapping.check_segments(segments)
            if hasattr(self.layers[0], "batch_input_shape"):
                kwargs.setdefault("batch_input_shape", self.layers[0].batch_input_shape)
            super().__init__(name=name, **kwargs)
            self._layers = self.layers  # where Keras looks for weights, losses and updates
            self.segments = segments
            self.policy = policy
            self.supports_masking = True
            self._sizes = None
            self._masks = {}

        def build(self, input_shape=None):
            self._sizes = []
            for layer in self.layers:
                with backend.name_scope(layer.name):
                    _build(layer, input_shape)
                input_shape = layer.compute_output_shape(input_shape)
                self._sizes.append(wrapping.size_of(input_shape))
            super().build(input_shape)

        def call(self, inputs, training=None, mask=None):
            first, made = inputs, []
            bounds = runtime.cut(self._sizes or [1] * len(self.layers), self.segments)
            for start, stop in zip(bounds, bounds[1:]):
                segment = self.layers[start:stop]

                def run(x, mask, segment=segment):
                    for layer in segment:
                        made.append((layer, x))
                        x, mask = _run_layer(family, layer, x, training, mask)
                    return x, mask

                name = f"{self.name}[{start}:{stop}]"
                inputs, mask = runtime.call(name, run, segment, family, (inputs, mask), {})
            for layer, x in made[1:]:  # those of the first layer are found by its input, which is ours
                self.add_update(layer.get_updates_for(x), first)
                self.add_loss(layer.get_losses_for(x), first)
            self._masks[_ids(first)] = mask
            return inputs

        def compute_mask(self, inputs, mask=None):
            return self._masks.get(_ids(inputs))

        def compute_output_shape(self, input_shape):
            return wrapping.chain_output_shape(self.layers, input_shape)

        @property
        def stateful(self):
            return any(getattr(layer, "stateful", False) for layer in vars(self).get("layers", ()))

        @stateful.setter
        def stateful(self, value):
            pass  # set by Keras for every new layer; those inside count

        def reset_states(self):
            """Set the states of the stateful layers back."""
            for layer in self.layers:
                if getattr(layer, "stateful", False):
                    layer.reset_states()

        def get_config(self):
            config = super().get_config()
            config.update(
                layers=[{"class_name": type(x).__name__, "config": x.get_config()} for x in self.layers],
                segments=self.segments,
                policy=self.policy,
            )
            return config

        @classmethod
        def from_config(cls, config, custom_objects=None):
            return cls(**wrapping.with_layers(family, config, custom_objects))

    for cls in (Recompute, RecomputeSequential):
        cls.__module__, cls.__qualname__ = "keras_remat.layers", cls.__name__
        family.module("utils.generic_utils").get_custom_objects()[cls.__name__] = cls
    return Recompute, RecomputeSequential


def _build(layer, input_shape):
    """Do what a layer's first call does before `call`."""
    if not layer.built:
        layer.build(input_shape)
        layer.built = True
        if layer._initial_weights is not None:
            layer.set_weights(layer._initial_weights)


def _run_layer(family, layer, inputs, training, mask):
    """Run one layer of a chain as a model runs those inside it; return outputs and mask."""
    backend = family.module("backend")
    kwargs = {}
    if training is not None and wrapping.accepts(layer, "training"):
        kwargs["training"] = training
    if mask is not None and wrapping.accepts(layer, "mask"):
        kwargs["mask"] = mask
    with backend.name_scope(layer.name):
        outputs = layer.call(inputs, **kwargs)
        mask = layer.compute_mask(inputs, mask)
        regularizer = getattr(layer, "activity_regularizer", None)
        if regularizer is not None:
            layer.add_loss([regularizer(x) for x in _listed(outputs)], inputs)
    given = _listed(inputs)
    uses_phase = getattr(layer, "uses_learning_phase", False) or any(map(_uses_phase, given))
    shapes = [backend.int_shape(x) for x in given]
    shapes = layer.compute_output_shape(shapes if isinstance(inputs, list) else shapes[0])
    for output, shape in zip(_listed(outputs), shapes if isinstance(shapes, list) else [shapes]):
        output._keras_shape = shape
        output._uses_learning_phase = uses_phase or _uses_phase(output)
    return outputs, mask


def _uses_phase(tensor):
    return getattr(tensor, "_uses_learning_phase", False)


def _listed(value):
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _ids(tensors):
    return tuple(id(x) for x in _listed(tensors))
