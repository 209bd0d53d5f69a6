"""Recompute and RecomputeSequential for Keras 3.

The wrapper has the inner layer's name, call signature, dtype policy and masks. What Keras asks of a layer
beside calling it (building, shapes, saving) is handed on, so files match those of the unwrapped layer.
"""

from keras_remat.errors import RematError
from keras_remat.families import registry, wrapping
from keras_remat.replay.marks import unconverted


class _Inner(str):
    """The name of an attribute of the inner layer, where the wrapper has one of that name, too."""


_OWN = ("layer", "policy")  # what a wrapper has, and other layers may have


def make_classes(family, runtime):
    """Return the wrapper classes for the layers of `family`."""
    layer_class = family.layer_class
    wrapper_class = family.module("layers.core.wrapper").Wrapper
    holder = family.module("saving.object_registration")
    find = getattr(wrapper_class, "__getattr__", wrapper_class.__getattribute__)

    class Recompute(wrapper_class):
        __doc__ = "Runs `layer` so that only its inputs are kept for the backward pass."
        state_size = wrapping.no_cell

        def __new__(cls, layer, *args, **kwargs):
            return super().__new__(_named_like(layer, Recompute, holder), layer, *args, **kwargs)

        def __init__(self, layer, policy=None, name=None, **kwargs):
            wrapping.check_layer(family, layer, "Recompute")
            wrapping.check_policy(policy)
            # Keras reads the signature of `call` when a layer is made, so this comes first.
            vars(self)["call"] = wrapping.recomputed_call(self, layer, family, runtime)
            kwargs.setdefault("dtype", layer.dtype_policy)
            super().__init__(layer, name=name or wrapping.wrapper_name(layer), **kwargs)
            self.policy = policy
            _take_inputs_like(self, layer)
            self.built = layer.built

        def _maybe_build(self, call_spec):
            self.layer._maybe_build(call_spec)
            self.built = self.layer.built

        def build(self, *args, **kwargs):
            self.layer.build(*args, **kwargs)
            self.built = True

        def compute_output_spec(self, *args, **kwargs):
            return self.layer.compute_output_spec(*args, **kwargs)

        def compute_output_shape(self, *args, **kwargs):
            return self.layer.compute_output_shape(*args, **kwargs)

        def compute_mask(self, inputs, previous_mask):
            return self.layer.compute_mask(inputs, previous_mask) if self.layer.supports_masking else None

        def _set_mask_metadata(self, inputs, outputs, previous_mask):
            """Set no mask: the layer sets, or destroys, that of its outputs when it is called."""

        def quantized_call(self, *args, **kwargs):
            return self.call(*args, **kwargs)  # a wrapper has no weights in integers

        def get_config(self):
            return {**super().get_config(), "policy": self.policy}

        @classmethod
        def from_config(cls, config, custom_objects=None):
            config = dict(config)
            others = sorted(set(config) - {"layer", "policy", "name", "trainable", "dtype"})
            if others:  # as Bidirectional does, which makes another one from the config
                raise RematError(
                    "A layer that makes another one from the config of a layer takes it plain. Received: "
                    f"{', '.join(others)} in the config of Recompute. Wrap the outer layer, for example: "
                    "Recompute(Bidirectional(layer))."
                )
            inner = family.module("saving.serialization_lib").deserialize_keras_object(
                config.pop("layer"), custom_objects=custom_objects
            )
            return Recompute(inner, **config)

        def save_own_variables(self, store):
            self.layer.save_own_variables(store)

        def load_own_variables(self, store):
            self.layer.load_own_variables(store)

        def get_build_config(self):
            return self.layer.get_build_config()

        def build_from_config(self, config):
            self.layer.build_from_config(config)
            self.built = self.layer.built

        def __reduce__(self):
            make, *rest = super().__reduce__()
            # A class that is made for one wrapped class has no place from which pickle could import it.
            return (getattr(layer_class, "_unpickle_model", make), *rest)

        def _obj_type(self):
            return self.layer._obj_type()

        def __dir__(self):  # Keras saves what is listed
            return [_Inner(name) if name in _OWN else name for name in dir(self.layer)]

        def __getattr__(self, name):
            """Find what only the layer has: models their layers, lookups their assets."""
            try:
                return find(self, name)  # PyTorch has modules in a place of its own
            except AttributeError:
                if name == "layer" or name.startswith("__") or hasattr(type(self), name):
                    raise
            return getattr(self.layer, name)

    class RecomputeSequential(layer_class):
        __doc__ = "Runs a list of layers so that only the inputs of its segments are kept."

        def __init__(self, layers, segments="auto", policy=None, name=None, **kwargs):
            layers = wrapping.check_layers(family, layers, "RecomputeSequential")
            wrapping.check_policy(policy)
            wrapping.check_segments(segments)
            kwargs.setdefault("dtype", layers[0].dtype_policy)
            super().__init__(name=name, **kwargs)
            self.layers = layers
            self.segments = segments
            self.policy = policy
            _take_inputs_like(self, layers[0])
            self._sizes = None

        def quantized_call(self, *args, **kwargs):
            return self.call(*args, **kwargs)

        def _set_mask_metadata(self, inputs, outputs, previous_mask):
            """Set no mask: the layers set, or destroy, those of their outputs when they are called."""

        @unconverted
        def call(self, inputs, training=None, mask=None):
            if self._sizes is None and not runtime.is_on(family):  # Keras builds the layers by this call
                vars(self)["_sizes"], outputs = _run_and_measure(self.layers, inputs, training, mask)
                return outputs
            return wrapping.run_segments(self, family, runtime, self._sizes, inputs, training, mask)

        def compute_output_spec(self, *args, **kwargs):
            return family.module("backend").compute_output_spec(self.call, *args, **kwargs)

        def compute_output_shape(self, input_shape):
            return wrapping.chain_output_shape(self.layers, input_shape)

        def get_config(self):
            serialize = family.module("saving.serialization_lib").serialize_keras_object
            return {
                **super().get_config(),
                "layers": [serialize(layer) for layer in self.layers],
                "segments": self.segments,
                "policy": self.policy,
            }

        @classmethod
        def from_config(cls, config, custom_objects=None):
            return cls(**wrapping.with_layers(family, config, custom_objects))

    for cls in (Recompute, RecomputeSequential):
        cls.__module__, cls.__qualname__ = "keras_remat.layers", cls.__name__
        registry.replace(holder, cls)
    return Recompute, RecomputeSequential


def _take_inputs_like(wrapper, layer):
    """Let a wrapper convert and cast its inputs as `layer` does, and leave masks to it."""
    wrapper.supports_masking = True
    wrapper.autocast = layer.autocast
    wrapper._convert_input_args = layer._convert_input_args
    wrapper._allow_non_tensor_positional_args = layer._allow_non_tensor_positional_args
    # Made in a RematScope, it would run in Keras's checkpoint too, which loses gradients of losses inside.
    wrapper._remat_mode = None


_NAMED = {}


def _named_like(layer, base, holder):
    """Return a subclass of `base` with the name of the class of `layer`: files have paths of class names."""
    cls, is_hidden = type(layer), any(hasattr(layer, name) for name in _OWN)
    if (cls, is_hidden) not in _NAMED:
        attributes = {"__module__": base.__module__, "__doc__": base.__doc__}
        if is_hidden:  # only here, because PyTorch compiles no code that finds attributes so
            attributes["__getattribute__"] = _find_of_inner
        made = type(cls.__name__, (base,), attributes)
        # Configs name the one class from which all of these are made.
        holder.GLOBAL_CUSTOM_NAMES[made] = "keras_remat>" + base.__name__
        _NAMED[cls, is_hidden] = made
    return _NAMED[cls, is_hidden]


def _find_of_inner(self, name):
    return getattr(self.layer, str(name)) if type(name) is _Inner else object.__getattribute__(self, name)


def _run_and_measure(layers, inputs, training, mask):
    """Call `layers` one after the other; return the sizes of what they put out, and the last of it."""
    sizes = []
    for layer in layers:
        inputs = wrapping.run_chain([layer], inputs, training, mask)
        mask = None
        sizes.append(wrapping.size_of(getattr(inputs, "shape", ())))
    return sizes, inputs
