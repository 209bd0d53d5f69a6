"""The Keras under test: what it is called, which modes it trains in, how it is reset and seeded.

Everything that a test would otherwise ask of a version is answered here, by looking for the feature.
"""

import contextlib
import importlib
import importlib.util
import inspect
import random
from typing import Any, NamedTuple, Tuple

import numpy as np

NAMES = ("keras", "tf.keras", "tf.keras-eager", "tf_keras")


class Target(NamedTuple):
    """A Keras, its TensorFlow, and the modes in which it trains.

    The modes: `loop` (GradientTape, eager), `function` (the same in a `tf.function`), `xla` (the
    same compiled by XLA), `fit`, `fit-eager` (`run_eagerly=True`), and `graph` (symbolic gradients
    and a session).
    """

    name: str
    keras: Any
    tf: Any
    modes: Tuple[str, ...]

    @property
    def is_symbolic(self):
        """True if a layer is called once, when the model is made, and never again."""
        return "graph" in self.modes

    @property
    def version(self):
        """The version of TensorFlow as a tuple of two ints."""
        return tuple(int(part) for part in self.tf.__version__.split(".")[:2])

    def layer(self, name):
        """A layer class by name, or None."""
        found = getattr(self.keras.layers, name, None)
        experimental = getattr(self.keras.layers, "experimental", None)
        return found or getattr(getattr(experimental, "preprocessing", None), name, None)

    def has(self, name):
        """True if this Keras has a layer of that name, or a feature."""
        return self.layer(name) is not None or name in self.features

    @property
    def features(self):
        """What not every Keras has, and is no layer."""
        keras, tf = self.keras, self.tf
        policies = hasattr(getattr(keras, "mixed_precision", None), "set_global_policy")
        found = {
            "policies": policies and not self.is_symbolic,
            "devices": hasattr(tf.config, "set_logical_device_configuration") and self.name != "keras",
            "saved models": not self.is_symbolic and self.version >= (2, 0),
            "keras files": self.version >= (2, 13),
            "generators": not self.is_symbolic and hasattr(tf.random, "Generator"),
            "compiled fit": "jit_compile" in inspect.signature(keras.Model.compile).parameters,
            "several wrappers": self.name != "keras" and self.version >= (2, 0),
            "one wrapper": self.name == "keras" or self.version < (2, 0),
            "copies": not self.is_symbolic and self.version >= (2, 4),
            "forward mode": hasattr(getattr(tf, "autodiff", None), "ForwardAccumulator"),
            "symbolic inputs": not self.is_symbolic and self.version >= (2, 4),
            "doctests": self.name == "tf_keras",
            "functions for loops": _control_flow_is_functions(tf),
        }
        return {name for name, is_there in found.items() if is_there}

    def reset(self, seed=1):
        """Forget all graphs and layer names, and seed every generator."""
        self.keras.backend.clear_session()
        random.seed(seed)
        np.random.seed(seed)
        self.symbolic(self.tf.compat.v1.set_random_seed)(seed)

    def symbolic(self, function):
        """`function`, run in the graph in which this Keras makes its models."""
        return getattr(self.keras.backend, "symbolic", lambda f: f)(function)

    def learning_phase(self):
        """The tensor that tells a symbolic model whether it trains."""
        backend = self.keras.backend
        return getattr(backend, "symbolic_learning_phase", backend.learning_phase)()

    def initializer(self, seed):
        """The same weights each time: a seed of Keras 2.3.1 on TensorFlow 2 gives others each time."""

        def initialize(shape, dtype=None, **unused):
            drawn = np.random.RandomState(seed).uniform(-0.6, 0.6, tuple(map(int, shape)))
            return drawn.astype("float32")

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


def _control_flow_is_functions(tf):
    """True if a loop or branch in a graph is a graph of its own, and its gradient another (2.0+)."""
    return getattr(tf.compat.v1, "control_flow_v2_enabled", lambda: False)()


def best_name():
    """The newest Keras 2 that the environment has."""
    return "tf_keras" if importlib.util.find_spec("tf_keras") else "tf.keras"


def current():
    """The target that was loaded last."""
    return _LOADED[-1]


_LOADED = []


def load(name):
    """Import a Keras by the name of its target."""
    import tensorflow as tf

    if name == "tf.keras-eager":
        tf.compat.v1.enable_v2_behavior()
    if name in ("keras", "tf_keras"):
        keras = importlib.import_module(name)
    else:
        keras = tf.keras
    target = Target(name, keras, tf, ())
    _two_devices(target)
    _LOADED.append(target._replace(modes=_modes(target)))
    return current()


def _modes(target):
    if target.name == "keras" or not target.tf.executing_eagerly():
        return ("graph", "fit")
    modes = ("loop", "function", "fit", "fit-eager")
    return modes + ("xla",) if target.version >= (2, 6) else modes


def _two_devices(target):
    """Split the processor in two before it is used: for MirroredStrategy, and harmless otherwise."""
    config = target.tf.config
    if hasattr(config, "set_logical_device_configuration"):
        halves = [config.LogicalDeviceConfiguration(), config.LogicalDeviceConfiguration()]
        config.set_logical_device_configuration(config.list_physical_devices("CPU")[0], halves)
