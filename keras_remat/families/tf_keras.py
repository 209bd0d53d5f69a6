"""tf.keras from TensorFlow 1.14 to 2.15, and tf_keras."""

import contextlib
import importlib

import tensorflow as tf

from keras_remat.families import base, tf_keras_costs, tf_keras_layers, tf_keras_models
from keras_remat.replay.wrapping import kept, outside, wrap


class TFKeras(base.Family):
    """The Keras that came with TensorFlow; `root` tells which of its packages."""

    def __init__(self, root):
        super().__init__(root)
        self._utils = self.module("engine.base_layer_utils")
        self._autocast = self.find_module("mixed_precision.autocast_variable") or self.find_module(
            "mixed_precision.experimental.autocast_variable"
        )
        # Since TensorFlow 2.9 each call of a random layer moves a seed that is kept in Python.
        generator = getattr(self.module("backend"), "RandomGenerator", None)
        if hasattr(generator, "make_legacy_seed"):
            wrap(generator, "make_legacy_seed", kept)
        if not hasattr(self._utils, "CallContext"):
            _note_called(self._utils)
        wrap(self.layer_class, "add_weight", outside)
        wrap(self.layer_class, "_maybe_build", outside)
        self.backend.watch_losses(self.layer_class, "losses")

    def find_module(self, name):
        """Import a module of this Keras, None if this version has none of that name."""
        try:
            return self.module(name)
        except ImportError:
            return None

    @property
    def layer_class(self):
        """The base class of this Keras's layers."""
        return self.module("engine.base_layer").Layer

    @property
    def has_one_wrapper(self):
        return not hasattr(self.layer_class, "_dedup_weights")  # up to TensorFlow 1.15

    def make_wrappers(self, runtime):
        return tf_keras_layers.make_classes(self, runtime)

    @property
    def sequential_model_class(self):
        """The class of Sequential models."""
        return self.module("engine.sequential").Sequential

    def is_model(self, layer):
        return isinstance(layer, self.module("engine.training").Model)

    def calls(self, model):
        return tf_keras_models.calls(self, model)

    def output_keys(self, model):
        return tf_keras_models.output_keys(self, model)

    def convert(self, model, segments, runtime):
        tf_keras_models.convert(self, model, segments, runtime)

    def mask_of(self, tensor):
        """Return the mask that Keras keeps for a tensor, or None."""
        return getattr(tensor, "_keras_mask", None)

    def set_mask(self, tensor, mask):
        """Let `mask` be the mask of `tensor`."""
        tensor._keras_mask = mask

    def input_specs(self, model, size):
        return tf_keras_costs.input_specs(self, model, size)

    def trace(self, call, specs, wanted, masked):
        return tf_keras_costs.trace(self, call, specs, wanted, masked)

    def arguments_of(self, call):
        return tf_keras_costs.arguments_of(call)

    def variable(self):
        return tf.Variable(tf.zeros((8, 8)))

    def forget_functions(self, model):
        tf_keras_models.forget_functions(model)

    def _context(self):
        """Return the object on which Keras notes the present call (a thread's, in 1.14 the module's)."""
        holder = self._utils._call_context
        if hasattr(holder, "in_call") or not hasattr(self._utils, "CallContext"):
            return holder
        return self._utils.call_context()

    def is_inference(self):
        context = self._context()
        if getattr(context, "saving", False):
            return True
        training = getattr(context, "training", None)
        return training is not None and not self.backend.is_tensor(training) and not training

    def is_called(self, layer):
        """True if it is `layer.__call__` that runs what runs now, not somebody who runs `layer.call`."""
        return getattr(self._context(), "layer", None) is layer

    def call_state(self, layers):
        return dict(vars(self._context())), self._autocast_dtype(), self._masks(layers)

    @contextlib.contextmanager
    def entered(self, state):
        attributes, dtype, masks = state
        context = self._context()
        before, dtype_before = dict(vars(context)), self._autocast_dtype()
        masks_before = [(held, dict(held)) for held, _ in masks]
        _set_items(vars(context), attributes)
        self._set_autocast_dtype(dtype)
        for held, items in masks:
            _set_items(held, items)
        try:
            yield
        finally:
            _set_items(vars(context), before)
            self._set_autocast_dtype(dtype_before)
            for held, items in masks_before:
                _set_items(held, items)

    def _masks(self, layers):
        """Note the dropout masks that recurrent cells keep from call to call, if no call resets them."""
        found = []
        for layer in self.all_sublayers(layers):
            for name in _MASK_CACHES:
                if name in vars(layer):
                    found.append((vars(layer)[name], dict(vars(layer)[name])))
        return found

    def _autocast_dtype(self):
        """The type that variables are read as: kept by thread since TensorFlow 2.4, by graph before."""
        if hasattr(self._autocast, "_autocast_dtype"):
            return getattr(self._autocast._autocast_dtype, "dtype", None)
        return getattr(tf.compat.v1.get_default_graph(), "_auto_cast_variable_read_dtype", None)

    def _set_autocast_dtype(self, dtype):
        if hasattr(self._autocast, "_autocast_dtype"):
            self._autocast._autocast_dtype.dtype = dtype
        elif hasattr(tf.compat.v1.get_default_graph(), "_auto_cast_variable_read_dtype"):
            tf.compat.v1.get_default_graph()._auto_cast_variable_read_dtype = dtype

    def sublayers(self, layer):
        if hasattr(layer, "_flatten_layers"):  # TensorFlow 2.3+
            return list(layer._flatten_layers())
        # Not `submodules`, which sorts the layers that a compiled model has as keys.
        layer_utils = importlib.import_module("tensorflow.python.training.tracking.layer_utils")
        found, pending = {}, [layer]
        while pending:
            layer = pending.pop()
            if id(layer) not in found:
                found[id(layer)] = layer
                inner = getattr(layer, "_layers", None) or []
                pending.extend(reversed(list(layer_utils.filter_empty_layer_containers(inner))))
        return list(found.values())

    def loss_lists(self, layer):
        lists = [layer._losses]
        if getattr(layer, "_eager_losses", None) is not None:
            lists.append(layer._eager_losses)
        return lists

    def variables(self, layers):
        found = []
        for layer in self.all_sublayers(layers):
            found.extend(layer._trainable_weights)
            found.extend(layer._non_trainable_weights)
            # Up to TensorFlow 2.1 the states of a recurrent layer are none of its weights.
            states = tf.nest.flatten(getattr(layer, "states", None))
            found.extend(state for state in states if isinstance(state, tf.Variable))
            for metric in getattr(layer, "_metrics", []):
                found.extend(metric.weights)
        return list({id(variable): variable for variable in found}.values())


def _note_called(utils):
    """Note which layer is called: what Keras itself does since TensorFlow 1.15."""
    enter, noted = utils.call_context, utils._call_context

    @contextlib.contextmanager
    def call_context(layer, build_graph):
        before, noted.layer = getattr(noted, "layer", None), layer
        try:
            with enter(layer, build_graph):
                yield
        finally:
            noted.layer = before

    utils.call_context = call_context


_MASK_CACHES = ("_dropout_mask_cache", "_recurrent_dropout_mask_cache")  # TensorFlow 2.1+


def _set_items(target, items):
    target.clear()
    target.update(items)
