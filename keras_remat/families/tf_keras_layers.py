"""Recompute and RecomputeSequential for tf.keras and tf_keras.

The wrapper has the inner layer's name, call signature and masks, and builds it in its own name
scope; Keras finds the weights and losses by itself. Files match the unwrapped layer by name and by
order.
"""

from keras_remat.families import registry, wrapping
from keras_remat.replay.marks import unconverted

# By these TimeDistributed tells the layers of Keras, which it calls on all steps at once, from others.
_BUILT_IN = ("_keras_api_names", "_keras_api_names_v1")


def make_classes(family, runtime):
    """Return the wrapper classes for the layers of `family`."""
    layer_class = family.layer_class
    wrapper_class = family.module("layers").Wrapper
    model_class = family.module("engine.training").Model

    class Recompute(wrapper_class):
        __doc__ = "Runs `layer` so that only its inputs are kept for the backward pass."
        state_size = wrapping.no_cell

        def __init__(self, layer, policy=None, name=None, **kwargs):
            wrapping.check_layer(family, layer, "Recompute")
            wrapping.check_policy(policy)
            wrapping.note_wrapper(family, layer, self)
            # Keras reads the signature of `call` when a layer is made, so this comes first.
            vars(self)["call"] = wrapping.recomputed_call(self, layer, family, runtime)
            for attribute in _BUILT_IN:
                vars(self)[attribute] = getattr(layer, attribute, ())
            super().__init__(layer, name=name or wrapping.wrapper_name(layer), **kwargs)
            self.policy = policy
            self.supports_masking = True
            self._compute_output_and_mask_jointly = True
            self._autocast = False

        def build(self, input_shape=None):
            if isinstance(self.layer, model_class):
                self.built = True  # a model builds when it is called
            else:
                super().build(input_shape)
                self.built = True

        @property
        def weights(self):
            return self.layer.weights  # a model's own order, not trainable ones first

        def compute_output_shape(self, input_shape):
            return self.layer.compute_output_shape(input_shape)

        def compute_mask(self, inputs, mask=None):
            # The masks of a model come with its outputs; asking for them runs the model again.
            return None if isinstance(self.layer, model_class) else self.layer.compute_mask(inputs, mask)

        def get_config(self):
            config = super().get_config()
            config["policy"] = self.policy
            return config

    class RecomputeSequential(layer_class):
        __doc__ = "Runs a list of layers so that only the inputs of its segments are kept."

        def __init__(self, layers, segments="auto", policy=None, name=None, **kwargs):
            layers = wrapping.check_layers(family, layers, "RecomputeSequential")
            wrapping.check_policy(policy)
            wrapping.check_segments(segments)
            super().__init__(name=name, **kwargs)
            self.layers = layers
            self.segments = segments
            self.policy = policy
            self.supports_masking = True
            self._compute_output_and_mask_jointly = True
            self._autocast = False
            self._sizes = None

        def build(self, input_shape=None):
            self._sizes = wrapping.output_sizes(self.layers, input_shape)
            self.built = True

        @unconverted
        def call(self, inputs, training=None, mask=None):
            return wrapping.run_segments(self, family, runtime, self._sizes, inputs, training, mask)

        @property
        def weights(self):
            return wrapping.weights_in_order(self.layers)

        def compute_output_shape(self, input_shape):
            return wrapping.chain_output_shape(self.layers, input_shape)

        def get_config(self):
            config = super().get_config()
            serialize = family.module("layers").serialize
            config.update(
                layers=[serialize(layer) for layer in self.layers],
                segments=self.segments,
                policy=self.policy,
            )
            return config

        @classmethod
        def from_config(cls, config, custom_objects=None):
            return cls(**wrapping.with_layers(family, config, custom_objects))

    for cls in (Recompute, RecomputeSequential):
        cls.__module__, cls.__qualname__ = "keras_remat.layers", cls.__name__
        _register(family, cls)
    _show_metrics(family, Recompute, lambda wrapper: [wrapper.layer])
    _show_metrics(family, RecomputeSequential, lambda wrapper: wrapper.layers)
    return Recompute, RecomputeSequential


def _show_metrics(family, cls, inner):
    """Let models name the metrics inside: up to TensorFlow 2.1 they name those of their direct layers."""
    if hasattr(family.layer_class, "_flatten_layers"):
        return

    def metrics(self):
        return [metric for layer in inner(self) for metric in layer.metrics]

    def tensors(self):  # TensorFlow 1.14
        found = {}
        for layer in inner(self):
            found.update(getattr(layer, "_all_metrics_tensors", None) or layer._metrics_tensors)
        return found

    cls.metrics = property(metrics)
    cls._metrics = property(metrics, lambda self, value: None)
    cls._metrics_tensors = property(tensors, lambda self, value: None)


def _register(family, cls):
    """Have configs name `cls` in full, and let `load_model` find it without `custom_objects`."""
    for name in (
        "saving.object_registration",
        "utils.generic_utils",
    ):  # the first since TensorFlow 2.12
        holder = family.find_module(name)
        if hasattr(holder, "get_custom_objects"):
            registry.replace(holder, cls)
            return
