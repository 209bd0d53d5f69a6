"""The two jobs of the demo: a small GPT on Python's standard library, a ResNet on digits.

Both are ordinary functional Keras models, written without a thought for recomputation. Each task
gives a compiled model and two datasets: endless batches to train on, and held-out ones.
"""

import sysconfig
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

layers, ops = keras.layers, keras.ops


class CausalSelfAttention(layers.Layer):
    """Multi-head attention in which a position sees itself and what came before."""

    def __init__(self, heads, dropout, **options):
        super().__init__(**options)
        self.heads = heads
        self.dropout = layers.Dropout(dropout)

    def build(self, input_shape):
        width = input_shape[-1]
        self.queries_keys_values = layers.Dense(3 * width)
        self.output_projection = layers.Dense(width)

    def call(self, inputs, training=None):
        length, width = inputs.shape[1:]
        packed = self.queries_keys_values(inputs)
        packed = ops.reshape(packed, (-1, length, 3, self.heads, width // self.heads))
        queries, keys, values = ops.unstack(ops.transpose(packed, (2, 0, 3, 1, 4)), 3)
        scores = ops.matmul(queries, ops.swapaxes(keys, 2, 3)) / (width // self.heads) ** 0.5
        scores += -1e9 * ops.triu(ops.ones((length, length)), 1)
        weights = self.dropout(ops.softmax(scores), training=training)
        mixed = ops.transpose(ops.matmul(weights, values), (0, 2, 1, 3))
        return self.output_projection(ops.reshape(mixed, (-1, length, width)))


class Positions(layers.Layer):
    """Add a learned vector to each position."""

    def build(self, input_shape):
        self.table = self.add_weight(name="table", shape=input_shape[1:], initializer="uniform")

    def call(self, inputs):
        return inputs + self.table


def gpt(length, width, blocks, heads, dropout):
    """A decoder-only transformer over bytes: (batch, length) -> (batch, length, 256) logits."""
    tokens = keras.Input((length,), dtype="int32")
    x = Positions()(layers.Embedding(256, width)(tokens))
    for _ in range(blocks):
        attended = layers.LayerNormalization()(x)
        attended = CausalSelfAttention(heads, dropout)(attended)
        x = layers.add([x, layers.Dropout(dropout)(attended)])
        wide = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        wide = layers.Dense(width)(wide)
        x = layers.add([x, layers.Dropout(dropout)(wide)])
    return keras.Model(tokens, layers.Dense(256)(layers.LayerNormalization()(x)), name="gpt")


def resnet(size, channels, stages, blocks):
    """A residual network: (batch, size, size, 1) -> (batch, 10) logits."""

    def conv(x, filters, stride=1):
        x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.8)(x)

    images = keras.Input((size, size, 1))
    x = layers.Activation("gelu")(conv(images, channels))
    for stage in range(stages):
        filters = channels * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            branch = conv(layers.Activation("gelu")(conv(x, filters, stride)), filters)
            shortcut = x if x.shape[1:] == branch.shape[1:] else conv(x, filters, stride)
            x = layers.Activation("gelu")(layers.add([shortcut, branch]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(10)(x), name="resnet")


def stdlib_bytes():
    """The sources of this Python's standard library as one array of bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = sorted(p for p in folder.glob("*.py") if p.is_file())
    return np.frombuffer(b"".join(p.read_bytes() for p in sources), np.uint8)


def digits(size):
    """Scikit-learn's 1,797 handwritten digits, made larger: images and classes."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    images = tf.image.resize(images.reshape(-1, 8, 8, 1) / 8.0 - 1.0, (size, size))
    return images.numpy(), classes.astype("int32")


class GptTask:
    """Predict the next byte of source code."""

    title = "GPT, standard library"

    def __init__(self, batch=8, length=256):
        self.length = length
        text = stdlib_bytes()
        text, held_out = text[: -(2**14)], text[-(2**14) :]
        rows = held_out[: len(held_out) // (length + 1) * (length + 1)].reshape(-1, length + 1)
        self.held_out = dataset(inputs_and_targets(rows), batch)

        def rows_at_random(generator):
            starts = generator.randint(len(text) - length - 1, size=batch)
            return inputs_and_targets(np.stack([text[s : s + length + 1] for s in starts]))

        self.training = endless(rows_at_random)

    def model(self):
        model = gpt(self.length, width=128, blocks=6, heads=4, dropout=0.1)
        model.compile(keras.optimizers.Adam(2e-3), cross_entropy())
        return model


def inputs_and_targets(rows):
    return rows[:, :-1].astype("int32"), rows[:, 1:].astype("int32")


class DigitsTask:
    """Tell handwritten digits apart."""

    title = "ResNet, digits"

    def __init__(self, batch=32, size=32):
        self.size = size
        images, classes = digits(size)
        order = np.random.RandomState(0).permutation(len(images))
        training, held_out = order[:-256], order[-256:]
        self.held_out = dataset((images[held_out], classes[held_out]), batch)

        def images_at_random(generator):
            chosen = generator.choice(training, batch)
            return images[chosen], classes[chosen]

        self.training = endless(images_at_random)

    def model(self):
        model = resnet(self.size, channels=16, stages=3, blocks=6)
        model.compile(keras.optimizers.Adam(1e-3), cross_entropy())
        return model


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def endless(batch_at_random):
    """A dataset of batches that a function draws with a NumPy generator."""

    def batches():
        generator = np.random.RandomState(0)
        while True:
            yield batch_at_random(generator)

    first = next(batches())
    signature = tuple(tf.TensorSpec(array.shape, array.dtype) for array in first)
    made = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return made.with_options(without_autotuning())


def dataset(arrays, batch):
    made = tf.data.Dataset.from_tensor_slices(arrays).batch(batch)
    return made.with_options(without_autotuning())


def without_autotuning():
    """TensorFlow 2.21 ends a tuned pipeline only when its tuner wakes up: seconds, then minutes."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


TASKS = {"gpt": GptTask, "digits": DigitsTask}
