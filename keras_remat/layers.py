"""The wrapper layers, made for whatever Keras the layer that they wrap belongs to."""

from keras_remat import engine
from keras_remat.errors import RematError, UnsupportedFamilyError
from keras_remat.families import family_at, family_of, registry, wrapping
from keras_remat.families.wrapping import Runtime
from keras_remat.pure import Block


def _call(name, run, layers, family, args, kwargs):
    return engine.call(Block(name, run, layers, family), args, kwargs)


def _cut(sizes, segments):
    from keras_remat.planning.choose import cut_chain  # which needs NumPy, as every Keras does

    return cut_chain(sizes, segments)


RUNTIME = Runtime(call=_call, cut=_cut, is_on=engine.is_on)


class _Facade(type):
    """Makes `isinstance` hold for the layers of every family that the façade made."""

    def __instancecheck__(cls, instance):
        kinds = type(instance).__mro__
        return any(kind.__module__ == cls.__module__ and kind.__name__ == cls.__name__ for kind in kinds)


class Recompute(metaclass=_Facade):
    """Wraps a layer or model so that only its inputs are kept for the backward pass.

    In training, Keras keeps every tensor that a layer needs for its gradient. A wrapped layer keeps
    its inputs and runs again when its gradient is asked for, with the same random numbers and the
    same state, so all numbers are those of the unwrapped layer. It helps where a layer keeps much
    more than its input (attention, a residual block, a whole encoder layer) and does not help for a
    layer that keeps little (a lone Dense or convolution). Nothing changes in `predict`.

    Method: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016,
    https://arxiv.org/abs/1604.06174.

    Args:
      layer: a layer or model of Keras 3, standalone Keras 2.3.1, tf.keras or tf_keras.
      policy: None, to recompute all of the layer.
      name: str; by default the layer's own name, so that weight files match by name.

    Call arguments:
      those of `layer`; tensors of any shape, nested in lists, tuples and dicts.

    Returns:
      A layer of the same Keras as `layer`, with its output shapes, weights, losses and masks.

    Raises:
      UnsupportedFamilyError: if `layer` is no layer of a supported Keras.
      RematError: if `policy` is not None.

    Example:
        >>> import keras
        >>> from keras_remat import Recompute
        >>> x = keras.Input((16,))
        >>> block = keras.Sequential([keras.layers.Dense(64, "gelu"), keras.layers.Dense(16)])
        >>> Recompute(block)(x).shape
        (None, 16)
    """

    def __new__(cls, layer, *, policy=None, name=None):
        family = family_of(layer)
        make = wrapper_classes(family)[0]
        if not family.has_one_wrapper:
            return make(layer, policy=policy, name=name)
        wrapping.check_policy(policy)
        return wrapping.only_wrapper(layer, name) or make(layer, policy=policy, name=name)


class RecomputeSequential(metaclass=_Facade):
    """Runs a list of layers one after the other, in segments that keep only their inputs.

    Args:
      layers: list of layers of one Keras; each takes one tensor (or structure) and gives one.
      segments: "auto" (least peak), "sqrt" (about the square root of the number of layers), or
        an int.
      policy: None, to recompute all of a segment.
      name: str, optional.

    Call arguments:
      inputs: what the first layer takes, of shape `(batch, ...)`.
      training: bool or tensor, optional.
      mask: mask for the first layer, optional.

    Returns:
      A layer of the same Keras as `layers`; `.layers` lists what it was made of.

    Raises:
      RematError: if the list is empty, or `segments` or `policy` is none of the above.
      UnsupportedFamilyError: if the list holds something that is no layer, or layers of two Kerases.

    Example:
        >>> import keras
        >>> from keras_remat import RecomputeSequential
        >>> layers = [keras.layers.Dense(8, "relu") for _ in range(4)]
        >>> RecomputeSequential(layers, segments=2)(keras.Input((8,))).shape
        (None, 8)
    """

    def __new__(cls, layers, *, segments="auto", policy=None, name=None):
        layers = list(layers) if isinstance(layers, (list, tuple)) else layers
        if not isinstance(layers, list):
            raise UnsupportedFamilyError(
                f"RecomputeSequential takes a list of layers. Received: {layers!r}. Wrap a single layer "
                "with Recompute."
            )
        if not layers:
            raise RematError(
                "RecomputeSequential needs at least one layer. Received: an empty list. Pass the layers, or "
                "leave it out."
            )
        family = family_of(layers[0])
        return wrapper_classes(family)[1](layers, segments=segments, policy=policy, name=name)


_CLASSES = {}


def wrapper_classes(family):
    """Return the family's own Recompute and RecomputeSequential, made once."""
    if family.root not in _CLASSES:
        _CLASSES[family.root] = family.make_wrappers(RUNTIME)
    return _CLASSES[family.root]


registry.watch(lambda root: wrapper_classes(family_at(root)))
