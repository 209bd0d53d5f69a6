"""Train a Keras model in less memory: one line more.

python examples/quickstart.py [--quick]
"""

import sys

import keras
from sklearn.datasets import load_digits

from keras_remat import recompute_all

digits, classes = load_digits(return_X_y=True)

blocks = [keras.layers.Dense(512, activation="gelu") for _ in range(16)]
model = keras.Sequential([*blocks, keras.layers.Dropout(0.1), keras.layers.Dense(10)])
model = recompute_all(model)  # the line

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
epochs = 1 if "--quick" in sys.argv else 10
model.fit(digits / 16.0, classes, epochs=epochs, validation_split=0.1, verbose=2)
