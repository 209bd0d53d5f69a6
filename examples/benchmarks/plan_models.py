"""Models for plans: each function returns a model with random weights and a batch for it."""

import numpy as np


def bert(batch, length, layers=12, width=768, heads=12, words=1000):
    import keras

    L = keras.layers
    ids = keras.Input((length,), dtype="int32")
    x = L.Dropout(0.1)(L.LayerNormalization()(L.Embedding(words, width)(ids)))
    for _ in range(layers):
        y = L.Dropout(0.1)(L.MultiHeadAttention(heads, width // heads, dropout=0.1)(x, x))
        x = L.LayerNormalization()(L.Add()([x, y]))
        y = L.Dropout(0.1)(L.Dense(width)(L.Dense(4 * width, activation="gelu")(x)))
        x = L.LayerNormalization()(L.Add()([x, y]))
    x = L.Dense(2)(x)
    return keras.Model(ids, x), np.random.RandomState(0).randint(0, words, (batch, length)).astype("int32")


def unet(batch, size):
    import keras

    L = keras.layers

    def block(x, filters):
        for _ in range(2):
            x = L.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = L.Activation("relu")(L.BatchNormalization()(x))
        return x

    x = image = keras.Input((size, size, 3))
    skips = []
    for filters in (32, 64, 128, 256):
        skips.append(block(x, filters))
        x = L.MaxPooling2D()(skips[-1])
    x = block(x, 512)
    for filters in (256, 128, 64, 32):
        x = L.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = block(L.Concatenate()([x, skips.pop()]), filters)
    return keras.Model(image, L.Conv2D(1, 1)(x)), _images(batch, size)


def application(name, batch, size=224):
    import keras

    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3))
    return model, _images(batch, size)


def _images(batch, size):
    return np.random.RandomState(0).rand(batch, size, size, 3).astype("float32")


#: For a first look.
SMALLEST = "BERT of width 128, 16x64"
MODELS = {
    SMALLEST: lambda: bert(16, 64, 4, 128, 4),
    "BERT-base 8x128": lambda: bert(8, 128),
    "BERT-base 4x512": lambda: bert(4, 512),
    "BERT-small 8x128": lambda: bert(8, 128, 6, 384, 6),
    "ResNet50 8x224x224": lambda: application("ResNet50", 8),
    "U-Net 2x256x256": lambda: unet(2, 256),
    "DenseNet121 8x224x224": lambda: application("DenseNet121", 8),
}
