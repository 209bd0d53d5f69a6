"""What the wrappers of all families do alike: names, call signatures, checks of what they are given."""

import inspect
import types
import weakref
from typing import Any, Callable, NamedTuple

from keras_remat.errors import RematError, UnsupportedFamilyError
from keras_remat.replay.marks import unconverted


class Runtime(NamedTuple):
    """What a wrapper needs of the engine, which families do not import.

    `call(name, run, layers, family, args, kwargs)` runs a block; `cut(sizes, segments)` returns the
    bounds of the segments of a list of layers whose outputs have the given sizes; `is_on(family)`
    tells whether blocks would be recomputed now.
    """

    call: Callable[..., Any]
    cut: Callable[..., Any]
    is_on: Callable[..., Any]


def check_layer(family, layer, wrapper):
    """Raise unless `layer` is a layer of `family`."""
    if not isinstance(layer, family.layer_class):
        raise UnsupportedFamilyError(
            f"{wrapper} takes layers of one Keras. Received: {layer!r} of type "
            f"{type(layer).__module__}.{type(layer).__name__} beside layers of {family.root}. Make all "
            "layers with the same Keras."
        )


def check_layers(family, layers, wrapper):
    """Raise unless `layers` is a list of layers of `family`; return it as a list."""
    layers = list(layers)
    for layer in layers:
        check_layer(family, layer, wrapper)
    return layers


def check_policy(policy):
    """Raise unless `policy` is one that this version knows: None, to recompute all of a block."""
    if policy is not None:
        raise RematError(
            f"`policy` must be None: a block is recomputed as a whole. Received: policy={policy!r}. Wrap "
            "smaller blocks to keep more."
        )


def check_segments(segments):
    """Raise unless `segments` is "auto", "sqrt" or a positive int."""
    if isinstance(segments, bool) or not (
        segments in ("auto", "sqrt") or isinstance(segments, int) and segments > 0
    ):
        raise RematError(
            f'`segments` must be "auto", "sqrt" or a positive int. Received: segments={segments!r}. Take one '
            "of these."
        )


_WRAPPER = "_keras_remat_wrapper"  # on a layer: a weak reference to its only wrapper


def only_wrapper(layer, name):
    """Return the wrapper that `layer` has already, None if it has none.

    Raises:
      RematError: if it has one of another name.
    """
    wrapper = vars(layer).get(_WRAPPER, lambda: None)()
    if wrapper is None or wrapper.layer is not layer:  # that of the layer which this one is a copy of
        return None
    if name not in (None, wrapper.name):
        raise RematError(
            "In this Keras a layer has one wrapper, which may be called many times. Received: "
            f"name={name!r} for the layer {layer.name!r}, which is wrapped as {wrapper.name!r}. Leave `name` "
            "out."
        )
    return wrapper


def note_wrapper(family, layer, wrapper):
    """Let `wrapper` be the only one of `layer`, where a layer may have but one."""
    if family.has_one_wrapper:
        vars(layer)[_WRAPPER] = weakref.ref(wrapper)


def wrapper_name(layer):
    """Return the name of the next wrapper of `layer`: the layer's own, so that files match by name."""
    count = vars(layer).get("_keras_remat_wrappers", 0)
    vars(layer)["_keras_remat_wrappers"] = count + 1
    return layer.name if count == 0 else f"{layer.name}_{count}"


def with_signature_of(function, original):
    """Give `function` the signature of `original`: Keras reads it to know what to pass."""
    function.__signature__ = inspect.signature(original)
    function.__doc__ = original.__doc__
    return function


def as_method(function, bound):
    """Give `function`, which takes `self` first, the signature that the method `bound` has unbound."""
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(bound)
    others = [p for p in signature.parameters.values() if p.name != "self"]  # bound tf.functions up to 2.1
    function.__signature__ = signature.replace(parameters=[me, *others])
    function.__doc__ = bound.__doc__
    return function


def accepts(layer, argument):
    """True if the call of `layer` has the named argument."""
    return argument in inspect.signature(layer.call).parameters


def run_chain(layers, inputs, training, mask):
    """Call `layers` one after the other, as Sequential does."""
    for position, layer in enumerate(layers):
        kwargs = {}
        if training is not None and accepts(layer, "training"):
            kwargs["training"] = training
        if position == 0 and mask is not None and accepts(layer, "mask"):
            kwargs["mask"] = mask
        inputs = layer(inputs, **kwargs)
    return inputs


def recomputed_call(wrapper, layer, family, runtime):
    """Make the `call` of a wrapper: the layer, called as a block. A method, so that copies have their own."""

    def call(self, *args, **kwargs):
        # Who runs `call` by itself, as TimeDistributed of Keras 3 does, leaves out what surrounds it.
        is_called = family.is_called(self)
        run = self.layer if is_called else family.convertible(self.layer.call, self.layer)
        return runtime.call(self.name, run, (self.layer,), family, args, kwargs)

    return types.MethodType(unconverted(as_method(call, layer.call)), wrapper)


@property
def no_cell(wrapper):
    """In the place of `state_size`: an RNN layer asks its cell for that."""
    raise RematError(
        "The steps of an RNN layer share dropout masks that its cell keeps, so it is recomputed as a whole. "
        f"Received: the cell {wrapper.layer.name!r} in Recompute. Wrap the RNN layer: Recompute(RNN(cell))."
    )


def run_segments(wrapper, family, runtime, sizes, inputs, training, mask):
    """Run the layers of a RecomputeSequential, of which each puts out so many elements (None: all alike)."""
    layers = list(wrapper.layers)
    bounds = runtime.cut(sizes or [1] * len(layers), wrapper.segments)
    for start, stop in zip(bounds, bounds[1:]):
        segment = layers[start:stop]

        def run(x, mask, segment=segment):
            return run_chain(segment, x, training, mask)

        name = f"{wrapper.name}[{start}:{stop}]"
        inputs = runtime.call(name, run, segment, family, (inputs, mask if start == 0 else None), {})
    return inputs


def chain_output_shape(layers, input_shape):
    """Return the shape of what `layers` put out, one after the other."""
    for layer in layers:
        input_shape = layer.compute_output_shape(input_shape)
    return input_shape


def output_sizes(layers, input_shape):
    """List the elements per sample that each layer puts out, None where Keras cannot tell."""
    sizes = []
    for layer in layers:
        try:
            input_shape = layer.compute_output_shape(input_shape)
        except (NotImplementedError, AttributeError, TypeError, ValueError):
            return None  # a layer of the user's that does not tell: all count alike
        sizes.append(size_of(input_shape))
    return sizes


def size_of(shape):
    """Return the elements per sample of a shape or of nested shapes; unknown dimensions count 1."""
    if isinstance(shape, dict):
        return sum(size_of(s) for s in shape.values())
    if hasattr(shape, "as_list"):
        shape = shape.as_list() if shape.ndims is not None else [None]
    shape = list(shape or ())
    if any(isinstance(s, (list, tuple, dict)) or hasattr(s, "as_list") for s in shape):
        return sum(size_of(s) for s in shape)
    size = 1
    for dimension in shape[1:]:
        size *= dimension or 1
    return size


def with_layers(family, config, custom_objects):
    """Return the config of a list of layers with layers in the place of their configs."""
    deserialize = family.module("layers").deserialize
    layers = [deserialize(c, custom_objects=custom_objects) for c in config["layers"]]
    return dict(config, layers=layers)


def weights_in_order(layers):
    """List the weights of `layers`, each once, layer by layer as a model does, not trainable ones first."""
    return list({id(weight): weight for layer in layers for weight in layer.weights}.values())


def like_layers(family, model):
    """List the layers that the model holds in lists of layers of one class."""
    found = []
    for value in vars(model).values():
        if isinstance(value, (list, tuple)) and len(value) > 1 and _are_alike(family, value):
            found.extend(value)
    return found


def _are_alike(family, values):
    return isinstance(values[0], family.layer_class) and all(type(v) is type(values[0]) for v in values)
