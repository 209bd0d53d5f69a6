"""A layer of one's own, recomputed by the decorator on its `call`.

The decorator is off until it is asked for, with `enabled=True` or, for all of them at once, the
environment variable RECOMPUTE=1.

    RECOMPUTE=1 python examples/custom_layer.py [--quick]
"""

import sys

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from keras_remat import is_recomputing, recompute_grad


class GatedBlock(keras.layers.Layer):
    """A residual gated unit: x + dropout(W (U x * sigmoid(V x)))."""

    runs = recomputed_runs = 0

    def __init__(self, units, dropout=0.1, **options):
        super().__init__(**options)
        self.units, self.dropout = units, dropout

    def build(self, input_shape):
        self.gate = keras.layers.Dense(self.units, activation="sigmoid")
        self.value = keras.layers.Dense(self.units)
        self.merge = keras.layers.Dense(input_shape[-1])
        self.drop = keras.layers.Dropout(self.dropout)  # the same mask both times

    @recompute_grad(enabled=True)
    def call(self, inputs, training=None):
        if is_recomputing():
            GatedBlock.recomputed_runs += 1
        else:
            GatedBlock.runs += 1
        gated = self.gate(inputs) * self.value(inputs)
        return inputs + self.drop(self.merge(gated), training=training)

    def get_config(self):
        return dict(super().get_config(), units=self.units, dropout=self.dropout)


digits, classes = load_digits(return_X_y=True)
digits = (digits / 16.0).astype("float32")

inputs = keras.Input((64,))
x = inputs
for _ in range(4):
    x = GatedBlock(256)(x)
model = keras.Model(inputs, keras.layers.Dense(10)(x))

# A loop of one's own works as well as `fit`; here without tf.function, so that the Python of
# `call` runs in every step and can be counted.
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam()
GatedBlock.runs = 0
for step in range(3 if "--quick" in sys.argv else 50):
    rows = slice(32 * step, 32 * step + 32)
    with tf.GradientTape() as tape:
        loss = loss_of(classes[rows], model(digits[rows], training=True))
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights))

print(f"loss {float(loss):.3f}")
print(f"forward runs of blocks: {GatedBlock.runs}, run again: {GatedBlock.recomputed_runs}")
