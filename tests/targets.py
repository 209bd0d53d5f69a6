"""The Keras under test: what it is called, which modes it trains in, how it is reset and seeded.

Everything that a test would otherwise ask of a version is answered here, by looking for the feature.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import random
from typing import Any, NamedTuple, Tuple

import numpy as np
import ops

NAMES = (
    "keras",
    "tf.keras",
    "tf.keras-eager",
    "tf_keras",
    "keras3-tensorflow",
    "keras3-jax",
    "keras3-torch",
)

# How far gradients may be apart where XLA compiles.
COMPILED = 1e-5


class Target(NamedTuple):
    """A Keras, its TensorFlow (None if it runs on another framework), and the modes in which it trains.

    The modes: `loop` (gradients by hand, eager), `function` (the same in a `tf.function` or `jax.jit`),
    `xla` (the same compiled by XLA), `fit`, `fit-eager` (`run_eagerly=True`), and `graph` (symbolic
    gradients and a session).
    """

    name: str
    keras: Any
    tf: Any
    modes: Tuple[str, ...]
    framework: Any  # what tests need to know of it, if it is not TensorFlow

    @property
    def is_keras3(self):
        return self.name.startswith("keras3")

    @property
    def framework_name(self):
        """The framework that the layers run on."""
        return framework_of(self.name)

    @property
    def is_symbolic(self):
        """True if a layer is called once, when the model is made, and never again."""
        return "graph" in self.modes

    @property
    def version(self):
        """The version of TensorFlow, or of Keras 3, as a tuple of two ints."""
        holder = self.keras if self.is_keras3 else self.tf
        return tuple(int(part) for part in holder.__version__.split(".")[:2])

    def layer(self, name):
        """A layer class by name, or None."""
        found = getattr(self.keras.layers, name, None)
        experimental = getattr(self.keras.layers, "experimental", None)
        return found or getattr(getattr(experimental, "preprocessing", None), name, None)

    def has(self, name):
        """True if this Keras has a layer of that name, or a feature, which must be one of the table."""
        if name[0].isupper():
            return self.layer(name) is not None
        features = self.features
        if name not in features:
            raise ValueError(f"Tests need one of the features {sorted(features)}. Received: {name!r}.")
        return features[name]

    @property
    def features(self):
        """What not every Keras has, and is no layer, and whether this one has it."""
        keras, tf = self.keras, self.tf
        policies = hasattr(getattr(keras, "mixed_precision", None), "set_global_policy")
        compiled_fit = "jit_compile" in inspect.signature(keras.Model.compile).parameters
        return {
            "policies": policies and not self.is_symbolic,
            "compiled fit": compiled_fit and tf is not None,
            "several wrappers": self.is_keras3 or self.name != "keras" and self.version >= (2, 0),
            "one wrapper": self.name == "keras" or self.version < (2, 0),
            "copies": self.is_keras3 or not self.is_symbolic and self.version >= (2, 4),
            "keras files": self.is_keras3 or self.version >= (2, 13),
            "eager variables": not self.is_symbolic,
            "version 1 models": self.is_symbolic,
            "symbolic inputs": not self.is_symbolic and (self.is_keras3 or self.version >= (2, 4)),
            "compiled HDF5 files": not self.is_keras3,  # which makes optimizers of no variables
            "calls of unbuilt models": not self.is_symbolic,
            "told runs": self.framework_name != "jax",  # a block's second run is Python that is told so
            "casts": self.is_keras3 or self.version >= (2, 2),
            "keras 3": self.is_keras3,
            "remat scopes": hasattr(keras, "RematScope"),  # since Keras 3.9
            "second runs of Python": self.framework_name != "jax",
            "keras 2": not self.is_keras3,
            # On a CPU Keras has XLA compile them, in eager code as well.
            "grouped convolutions": self.is_keras3
            or hasattr(keras.layers.Conv2D, "_jit_compiled_convolution_op"),
            "quantized layers": self.is_keras3 and self.version >= (3, 4),
            "global seed": self.framework_name != "jax",  # Keras refuses it in traces
            # Of pages and docstrings. Some blocks are about tf_keras, which only the newest environment has.
            "doctests": self.is_keras3 and (tf is None or importlib.util.find_spec("tf_keras") is not None),
            # Where what depends little on the Keras is tried with all models: one environment has the time.
            "all models": self.name == "keras3-tensorflow"
            and importlib.util.find_spec("tf_keras") is not None,
            "matplotlib": importlib.util.find_spec("matplotlib") is not None,
            **{framework: framework == self.framework_name for framework in ("tensorflow", "jax", "torch")},
            "devices": self.name != "keras" and _has(tf, "config.set_logical_device_configuration"),
            "saved models": tf is not None
            and not (self.is_symbolic or self.is_keras3)
            and self.version >= (2, 0),
            "compiled functions": tf is not None
            and not self.is_symbolic
            and "jit_compile" in inspect.signature(tf.function).parameters,
            "counting allocators": _has(tf, "config.experimental.reset_memory_stats"),
            "version 1 variables": tf is not None and self.is_symbolic and not tf.executing_eagerly(),
            "generators": not self.is_symbolic and _has(tf, "random.Generator"),
            "forward mode": _has(tf, "autodiff.ForwardAccumulator"),
            "functions for loops": tf is not None and _control_flow_is_functions(tf),
        }

    def reset(self, seed=1):
        """Forget all graphs and layer names, and seed every generator."""
        self.keras.backend.clear_session()
        random.seed(seed)
        np.random.seed(seed)
        if self.is_keras3:
            self.keras.utils.set_random_seed(seed)
        else:
            self.symbolic(self.tf.compat.v1.set_random_seed)(seed)

    def symbolic(self, function):
        """`function`, run in the graph in which this Keras makes its models."""
        return getattr(self.keras.backend, "symbolic", lambda f: f)(function)

    def learning_phase(self):
        """The tensor that tells a symbolic model whether it trains."""
        backend = self.keras.backend
        return getattr(backend, "symbolic_learning_phase", backend.learning_phase)()

    @property
    def ops(self):
        """Functions of tensors, by their names in `keras.ops`."""
        return self.keras.ops if self.is_keras3 else ops.TensorFlowOps(self.tf)

    def tensor(self, x):
        """An array as a tensor of the framework."""
        return self.framework.tensor(x) if self.tf is None else self.tf.constant(x)

    def flatten(self, structure):
        """The leaves of nested lists, tuples and dicts."""
        return self.keras.tree.flatten(structure) if self.is_keras3 else self.tf.nest.flatten(structure)

    def mask_of(self, tensor):
        """The mask that Keras keeps for a tensor, or None."""
        return getattr(tensor, "_keras_mask", None)

    def set_mask(self, tensor, mask):
        """Let Keras keep a mask for a tensor."""
        tensor._keras_mask = mask

    def weights_of(self, layer):
        """The variables of a layer that must be the same in two models."""
        return layer.variables if self.is_keras3 else layer.weights

    def name_of(self, variable):
        """A name that tells a variable from others of its model."""
        return getattr(variable, "path", variable.name)

    def in_train_phase(self, one, other, training):
        """The first in training, the second else: as a symbolic model decides it when it runs."""
        if self.is_keras3:
            return one if training else other
        return self.keras.backend.in_train_phase(one, other, training=training)

    def set_values(self, pairs):
        """Give each variable of `pairs` the value beside it; in a graph without making ops, which is slow."""
        if self.is_symbolic and self.version < (2, 0):
            session = self.tf.compat.v1.keras.backend.get_session()
            values = {variable.initializer.inputs[1]: value for variable, value in pairs}
            session.run([variable.initializer for variable, _ in pairs], values)
        else:
            for variable, value in pairs:
                variable.assign(value)

    def get_values(self, variables):
        """Copies of the variables' values: Keras may hand out the buffers of the weights themselves."""
        if self.is_keras3:
            return [np.array(self.keras.ops.convert_to_numpy(v.value)) for v in variables]
        return list(map(np.array, self.keras.backend.batch_get_value(variables)))

    def recording(self):
        """Let a plain model draw the numbers that recomputed blocks draw."""
        if self.tf is None:
            return contextlib.ExitStack()
        from keras_remat.backends.tensorflow import recording

        return recording()

    def watching(self):
        """Let runs of marked layers learn which tensors autograd saves, where it tells."""
        return getattr(self.framework, "watching", contextlib.ExitStack)()

    def traces(self, mode):
        """True if `mode` runs the Python of a model only once, to make a graph whose ops are looked at."""
        return self.tf is not None and mode not in ("loop", "fit-eager")

    def kept(self, runs, trainer):
        """For each of the runs, whether its intermediate is held now, between a loss and its gradient."""
        if hasattr(trainer, "residuals"):
            return self.framework.which_are_kept(runs, trainer.residuals)
        return [run.is_held() for run in runs] if self.tf is not None else [run.saved for run in runs]

    def kept_in_the_end(self, runs, kept):
        """The same after training: what graphs and hooks tell, and else what was `kept` before."""
        if self.tf is None:
            return kept if self.framework_name == "jax" else [run.saved for run in runs]
        if runs and runs[-1].graph is not None:
            return [bool(run.readers()) for run in runs if run.graph is runs[-1].graph]
        return kept

    def tolerance(self, mode):
        """How far numbers may be apart, relative to the largest.

        XLA and the executor of graphs choose the order of sums; eager kernels are the same in both runs.
        """
        if self.framework_name == "torch" or self.tf is not None and mode in ("loop", "fit-eager"):
            return 0.0
        compiled = mode == "xla" or self.framework_name == "jax" or self.is_keras3 and mode == "fit"
        return COMPILED if compiled else 1e-6

    def initializer(self, seed):
        """The same weights each time: a seed of Keras 2.3.1 on TensorFlow 2 gives others each time."""

        def initialize(shape, dtype=None, **unused):
            drawn = np.random.RandomState(seed).uniform(-0.6, 0.6, tuple(map(int, shape)))
            drawn = drawn.astype("float32")
            return self.keras.ops.convert_to_tensor(drawn) if self.is_keras3 else drawn

        return initialize

    def sgd(self, rate=0.1):
        """A plain optimizer."""
        return self.keras.optimizers.SGD(learning_rate=rate)

    @contextlib.contextmanager
    def policy(self, name):
        """Let layers that are made meanwhile compute in mixed precision."""
        module = self.keras.mixed_precision
        before = module.global_policy()
        module.set_global_policy(name)
        try:
            yield
        finally:
            module.set_global_policy(before)


def _has(module, path):
    """True if a module, which may be None, has what `path` names."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module is not None


def _control_flow_is_functions(tf):
    """True if a loop or branch in a graph is a graph of its own, and its gradient another (2.0+)."""
    return getattr(tf.compat.v1, "control_flow_v2_enabled", lambda: False)()


def framework_of(name):
    """The framework on which the layers of a target run."""
    return name.split("-")[1] if name.startswith("keras3") else "tensorflow"


def best_name():
    """Keras 3 if the environment has it, on TensorFlow if it has that; else the Keras of TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        return "keras3-jax" if importlib.util.find_spec("jax") else "keras3-torch"
    if importlib.util.find_spec("keras") and importlib.util.find_spec("keras.ops"):
        return "keras3-tensorflow"
    return "tf.keras"


def current():
    """The target that was loaded last."""
    return _LOADED[-1]


_LOADED = []


def load(name):
    """Import a Keras by the name of its target."""
    framework = framework_of(name)
    if name.startswith("keras3"):
        os.environ["KERAS_BACKEND"] = framework
    if framework != "tensorflow":
        module = importlib.import_module("on_" + framework)
        keras = importlib.import_module("keras")
        modes = ("loop", "function", "fit", "fit-eager") if framework == "jax" else ("loop", "fit")
        _LOADED.append(Target(name, keras, None, modes, module))
        return current()
    import tensorflow as tf

    if name == "tf.keras-eager":
        tf.compat.v1.enable_v2_behavior()
    if name in ("keras", "tf_keras") or name.startswith("keras3"):
        keras = importlib.import_module(name.split("3")[0])
    else:
        keras = tf.keras
    target = Target(name, keras, tf, (), None)
    _two_devices(target)
    _LOADED.append(target._replace(modes=_modes(target)))
    return current()


def _modes(target):
    if target.name == "keras" or not target.tf.executing_eagerly():
        return ("graph", "fit")
    modes = ("loop", "function", "fit", "fit-eager")
    is_old = not target.is_keras3 and target.version < (2, 6)
    return modes if is_old else (*modes, "xla")


def _two_devices(target):
    """Split the processor in two before it is used: for MirroredStrategy, and harmless otherwise."""
    config = target.tf.config
    if hasattr(config, "set_logical_device_configuration"):
        halves = [config.LogicalDeviceConfiguration(), config.LogicalDeviceConfiguration()]
        config.set_logical_device_configuration(config.list_physical_devices("CPU")[0], halves)
