"""The two jobs of the demo: a small GPT on Python's standard library, a ResNet on digits.

Both are ordinary functional Keras models, written without a thought for recomputation. Each task
gives a compiled model, batches to train on and held-out ones, the same on every backend of Keras.
"""

import sysconfig
from pathlib import Path

import keras
import numpy as np

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
    images = (images.reshape(-1, 8, 8, 1) / 8.0 - 1.0).astype("float32")
    images = ops.image.resize(images, (size, size))
    return ops.convert_to_numpy(images), classes.astype("int32")


class Batches(keras.utils.PyDataset):
    """A number of batches, each drawn by `batch_at(index)`; every backend of Keras takes it."""

    def __init__(self, count, batch_at):
        # TensorFlow 2.21 ends a pipeline that it tunes only when its tuner wakes up, which takes seconds,
        # then minutes. Keras has none tuned where two workers fetch the batches.
        super().__init__(workers=2 if keras.backend.backend() == "tensorflow" else 1)
        self.count, self.batch_at = count, batch_at

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return self.batch_at(index)


class GptTask:
    """Predict the next byte of source code."""

    title = "GPT, standard library"
    batch, length = 8, 256

    def __init__(self):
        text = stdlib_bytes()
        self.text, held_out = text[: -(2**14)], text[-(2**14) :]
        rows = len(held_out) // (self.length + 1)
        rows = held_out[: rows * (self.length + 1)].reshape(rows, -1)
        self.held_out = in_order(self.batch, *inputs_and_targets(rows))

    def training(self, count):
        def batch_at(index):
            starts = np.random.RandomState(index).randint(len(self.text) - self.length - 1, size=self.batch)
            return inputs_and_targets(np.stack([self.text[s : s + self.length + 1] for s in starts]))

        return Batches(count, batch_at)

    def model(self):
        model = gpt(self.length, width=128, blocks=6, heads=4, dropout=0.1)
        model.compile(keras.optimizers.Adam(2e-3), cross_entropy())
        return model


def inputs_and_targets(rows):
    return rows[:, :-1].astype("int32"), rows[:, 1:].astype("int32")


class DigitsTask:
    """Tell handwritten digits apart."""

    title = "ResNet, digits"
    batch, size = 32, 32

    def __init__(self):
        self.images, self.classes = digits(self.size)
        order = np.random.RandomState(0).permutation(len(self.images))
        self.chosen, held_out = order[:-256], order[-256:]
        self.held_out = in_order(self.batch, self.images[held_out], self.classes[held_out])

    def training(self, count):
        def batch_at(index):
            chosen = np.random.RandomState(index).choice(self.chosen, self.batch)
            return self.images[chosen], self.classes[chosen]

        return Batches(count, batch_at)

    def model(self):
        model = resnet(self.size, channels=16, stages=3, blocks=6)
        model.compile(keras.optimizers.Adam(1e-3), cross_entropy())
        return model


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def in_order(batch, *arrays):
    """The rows of some arrays, a batch at a time; the last one may be smaller."""

    def batch_at(index):
        return tuple(array[index * batch : (index + 1) * batch] for array in arrays)

    return Batches(-(-len(arrays[0]) // batch), batch_at)


TASKS = {"gpt": GptTask, "digits": DigitsTask}
