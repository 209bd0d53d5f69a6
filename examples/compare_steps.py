"""One process of `compare_backends.py`: training steps of every variant on the backend of Keras 3.

A step is a forward and a backward pass as `fit` would run it: a `tf.function`, a jitted function, plain
PyTorch. All variants start from the same weights and seeds, and take turns when they are timed.
"""

import gc
import platform
import statistics
import time

import keras
import numpy as np

BACKEND = keras.backend.backend()
VARIANTS = ("plain", "RematScope", "keras.remat", "Recompute")


class Steady(keras.layers.Layer):
    """A residual block without randomness or state: x + W gelu(V norm(x))."""

    def __init__(self, width, seed, **options):
        super().__init__(**options)
        self.norm = keras.layers.LayerNormalization()
        kernels = [keras.initializers.GlorotUniform(seed=10 * seed + number) for number in range(2)]
        self.wide = keras.layers.Dense(4 * width, activation="gelu", kernel_initializer=kernels[0])
        self.narrow = keras.layers.Dense(width, kernel_initializer=kernels[1])

    def build(self, shape):
        self.norm.build(shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], self.wide.units))

    def call(self, x):
        return x + self.narrow(self.wide(self.norm(x)))


class Noisy(Steady):
    """The same with a dropout mask, and with statistics that move: x + W dropout(gelu(V norm(x)))."""

    def __init__(self, width, seed, **options):
        super().__init__(width, seed, **options)
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.5, seed=seed)

    def call(self, x, training=None):
        wide = self.wide(self.norm(x, training=training))
        return x + self.narrow(self.drop(wide, training=training))


class SteadyInRemat(Steady):
    """`keras.remat` as its documentation shows it: around a method, inside of `call`."""

    def call(self, x):
        return keras.remat(super().call)(x)


class NoisyInRemat(Noisy):
    """The same; what is no tensor goes by closure, because TensorFlow takes nothing else."""

    def call(self, x, training=None):
        run = super().call
        return keras.remat(lambda x: run(x, training=training))(x)


KINDS = {"steady": (Steady, SteadyInRemat), "noisy": (Noisy, NoisyInRemat)}


def measure(quick, heap):
    """Yield the environment and then one dictionary for each kind of blocks and variant."""
    yield {"environment": describe_environment()}
    count, width, batch, steps = (2, 32, 128, 3) if quick else (8, 128, 512, 5)
    generator = np.random.RandomState(0)
    data = [generator.randn(batch, width).astype("float32") for _ in range(2)]
    for kind in KINDS:
        yield from compare(kind, count, width, data, steps, heap)


def compare(kind, count, width, data, steps, heap):
    """Return a result for each variant of a kind of blocks."""
    results, trainings, weights = [], {}, None
    for variant in VARIANTS:
        result = {"kind": kind, "variant": variant}
        results.append(result)
        try:
            model = build(kind, variant, count, width)
            weights = weights or [w.copy() for w in model.get_weights()]
            model.set_weights(weights)
            training = TRAININGS[BACKEND](model, *data)
            numbers = training.first_step()
            if variant == "plain":
                plain = numbers
            result.update(differences(numbers, plain))
            result["kept"] = training.kept(heap)
            result["temporary"] = training.temporary()
        except Exception as error:  # that it fails is what this row shows
            result["error"] = first_line(error)
        else:
            trainings[variant] = training
    seconds, peaks = time_steps(trainings, steps, heap)
    for result in results:
        if result["variant"] in trainings:
            result["seconds"] = statistics.median(seconds[result["variant"]])
            found = peaks[result["variant"]]
            result["peak"] = int(statistics.median(found)) if found else None
    return results


def build(kind, variant, count, width):
    """A chain of blocks in one of the variants."""
    make = KINDS[kind][variant == "keras.remat"]
    names = [f"block{number}" for number in range(count)]
    if variant == "RematScope":
        with keras.RematScope(mode="list_of_layers", layer_names=names):
            blocks = [make(width, seed, name=name) for seed, name in enumerate(names)]
    else:
        blocks = [make(width, seed, name=name) for seed, name in enumerate(names)]
    if variant == "Recompute":
        from keras_remat import Recompute

        blocks = [Recompute(block) for block in blocks]
    inputs = outputs = keras.Input((width,))
    for block in blocks:
        outputs = block(outputs)
    return keras.Model(inputs, outputs)


def time_steps(trainings, steps, heap):
    """Time steps of all variants in turn; return seconds and peaks of each."""
    seconds, peaks = ({variant: [] for variant in trainings} for _ in range(2))
    gc.collect()
    gc.freeze()  # what is there by now is looked at no more: collecting before each step is quick
    for number in range(steps + 1):
        for variant, training in trainings.items():
            gc.collect()
            peak = heap.watch() if heap else None
            start = time.perf_counter()
            training.step()
            if number:  # the first one warms up
                seconds[variant].append(time.perf_counter() - start)
                peaks[variant] += [peak()] if peak else []
    return seconds, peaks


def differences(numbers, plain):
    """Compare gradients and moving statistics, each relative to the largest number of the plain one."""
    found = {}
    for key, values in numbers.items():
        pairs = [(np.abs(a - b).max(), np.abs(b).max()) for a, b in zip(values, plain[key])]
        found[key] = max((float(d / scale) for d, scale in pairs if scale), default=None)
    return found


def first_line(error):
    """The type of an error and what it says, without what Keras puts around it."""
    lines = [line.strip() for line in str(error).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()]
    lines = [line for line in lines if line and not line.strip("'\"").startswith(WRAPPINGS)]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


WRAPPINGS = ("Exception encountered", "Could not automatically infer", "Unable to automatically build")


def describe_environment():
    import importlib.metadata as metadata

    framework = f"{BACKEND} {metadata.version(BACKEND)}"
    return f"Keras {keras.__version__}, {framework}, Python {platform.python_version()}."


class Training:
    """A model with data; subclasses run its steps."""

    def __init__(self, model, x, y):
        self.model = model
        self.x, self.y = keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)
        self.statistics = [v for v in model.non_trainable_variables if "moving" in v.path]
        self.prepare()

    def prepare(self):
        """Make what the steps need."""

    def temporary(self):
        """Bytes of temporary buffers that a compiler planned for a step; None where there is none to ask."""

    def loss(self, outputs):
        return keras.ops.mean(keras.ops.square(outputs - self.y))

    def first_step(self):
        """Run a step; return the gradients and the statistics that it left."""
        gradients = [np.array(keras.ops.convert_to_numpy(g)) for g in self.step()]
        return {"gradients": gradients, "statistics": [np.array(v.numpy()) for v in self.statistics]}

    def kept(self, heap):
        """Bytes in use between the forward and the backward pass, above those before."""
        if heap is None:
            return None
        self.backward(self.forward())  # warm up
        gc.collect()
        with heap.trace(step=10000) as points:
            loss = self.forward()
            gc.collect()
            time.sleep(0.01)  # an allocator that is asked for its size is asked every 2 ms
        self.backward(loss)
        return max(0, int(points[-1][1]))


class OnTensorFlow(Training):
    def prepare(self):
        import tensorflow as tf

        self.tf = tf
        self.weights = [v.value for v in self.model.trainable_variables]
        self.compiled = tf.function(lambda: self.backward(self.forward()), autograph=False)

    def forward(self):
        with self.tf.GradientTape() as tape:
            loss = self.loss(self.model(self.x, training=True))
        return tape, loss

    def backward(self, forward):
        tape, loss = forward
        return tape.gradient(loss, self.weights)

    def step(self):
        gradients = self.compiled()
        gradients[0].numpy()
        return gradients


class OnJax(Training):
    def prepare(self):
        import jax

        self.jax = jax
        self.weights = [v.value for v in self.model.trainable_variables]
        self.state = [v.value for v in self.model.non_trainable_variables]
        self.compiled = jax.jit(jax.value_and_grad(self.run, has_aux=True))

    def run(self, weights, state, x):
        outputs, state = self.model.stateless_call(weights, state, x, training=True)
        return self.loss(outputs), state

    def step(self):
        (_, state), gradients = self.compiled(self.weights, self.state, self.x)
        self.jax.block_until_ready(gradients)
        for variable, value in zip(self.model.non_trainable_variables, state):
            variable.assign(value)
        self.state = state
        return gradients

    def kept(self, heap):
        """Count what the function of the backward pass holds beside weights, state and data."""
        found = []

        def forward(weights, state, x):
            _, backward, _ = self.jax.vjp(lambda w: self.run(w, state, x), weights, has_aux=True)
            anyway = {id(a) for a in [*weights, *state, x, self.y]}
            held = {id(a): a for a in self.jax.tree_util.tree_leaves(backward) if id(a) not in anyway}
            found.extend(a.size * a.dtype.itemsize for a in held.values())

        self.jax.eval_shape(forward, self.weights, self.state, self.x)
        return sum(found)

    def temporary(self):
        compiled = self.compiled.lower(self.weights, self.state, self.x).compile()
        return compiled.memory_analysis().temp_size_in_bytes


class OnTorch(Training):
    def forward(self):
        return self.loss(self.model(self.x, training=True))

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.model.zero_grad()
        self.backward(self.forward())
        return [v.value.grad for v in self.model.trainable_variables]


TRAININGS = {"tensorflow": OnTensorFlow, "jax": OnJax, "torch": OnTorch}
