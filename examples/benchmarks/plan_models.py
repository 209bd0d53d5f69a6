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


def gpt(batch, length, layers=6, width=256, heads=4, words=1000):
    import keras

    L = keras.layers
    ids = keras.Input((length,), dtype="int32")
    x = L.Dropout(0.1)(L.Embedding(words, width)(ids))
    for _ in range(layers):
        y = L.LayerNormalization()(x)
        attention = L.MultiHeadAttention(heads, width // heads, dropout=0.1)
        x = L.Add()([x, attention(y, y, use_causal_mask=True)])
        y = L.Dense(4 * width, activation="gelu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dropout(0.1)(L.Dense(width)(y))])
    x = L.Dense(words)(L.LayerNormalization()(x))
    return keras.Model(ids, x), np.random.RandomState(0).randint(0, words, (batch, length)).astype("int32")


def mlp(batch, width=512, layers=16):
    import keras

    L = keras.layers
    x = inputs = keras.Input((width,))
    for _ in range(layers):
        x = L.Dropout(0.1)(L.Dense(width, activation="relu")(x))
    return keras.Model(inputs, L.Dense(4)(x)), np.random.RandomState(0).rand(batch, width).astype("float32")


def lstm(batch, length, layers=4, width=128, words=1000):
    import keras

    L = keras.layers
    ids = keras.Input((length,), dtype="int32")
    x = L.Embedding(words, width)(ids)
    for _ in range(layers):
        x = L.LSTM(width, return_sequences=True)(x)
    return keras.Model(ids, L.Dense(2)(x)), np.random.RandomState(0).randint(0, words, (batch, length))


def two_inputs(batch, size=32, width=256):
    """An image and numbers, joined late."""
    import keras

    L = keras.layers
    image, numbers = keras.Input((size, size, 3)), keras.Input((64,))
    x, y = image, numbers
    for filters in (16, 16, 32, 32):
        x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = L.BatchNormalization()(x)
    for _ in range(4):
        y = L.Dense(width, activation="relu")(y)
    z = L.Concatenate()([L.GlobalAveragePooling2D()(x), y])
    for _ in range(4):
        z = L.Dense(width, activation="relu")(z)
    given = [_images(batch, size), np.random.RandomState(1).rand(batch, 64).astype("float32")]
    return keras.Model([image, numbers], L.Dense(3)(z)), given


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


def applications():
    """All of keras.applications: {name: maker}, with images as small as they take.

    The batch is so large that activations fill the memory, and not the few gradients of weights in flight.
    """
    import client_models
    import keras

    names = [name for name in client_models.names() if hasattr(keras.applications, name)]
    sides = {name: client_models.SMALLEST.get(name, client_models.SIDE) for name in names}
    return {name: lambda name=name: application(name, 32, sides[name]) for name in names}


def make(name):
    """Return the model of that name and its batch."""
    known = {**MODELS, **SMALL}
    return (known if name in known else applications())[name]()


def _images(batch, size):
    return np.random.RandomState(0).rand(batch, size, size, 3).astype("float32")


#: Of which savings and times are asked.
MODELS = {
    "BERT-base 8x128": lambda: bert(8, 128),
    "BERT-base 4x512": lambda: bert(4, 512),
    "ResNet50 8x224x224": lambda: application("ResNet50", 8),
    "U-Net 4x256x256": lambda: unet(4, 256),
    "DenseNet121 8x224x224": lambda: application("DenseNet121", 8),
}
#: For a first look.
SMALLEST = "BERT of width 128, 16x64"
#: Of which the accuracy of predictions is asked.
SMALL = {
    "MLP 1024x512": lambda: mlp(1024),
    SMALLEST: lambda: bert(16, 64, 4, 128, 4),
    "BERT of width 384, 8x128": lambda: bert(8, 128, 6, 384, 6),
    "GPT of width 256, 8x128": lambda: gpt(8, 128),
    "ResNet50 4x112x112": lambda: application("ResNet50", 4, 112),
    "DenseNet121 4x112x112": lambda: application("DenseNet121", 4, 112),
    "U-Net 2x128x128": lambda: unet(2, 128),
    "VGG16 8x64x64": lambda: application("VGG16", 8, 64),
    "MobileNetV3Small 8x112x112": lambda: application("MobileNetV3Small", 8, 112),
    "EfficientNetB0 4x112x112": lambda: application("EfficientNetB0", 4, 112),
    "two inputs, 32": lambda: two_inputs(32),
    "LSTM 32x64": lambda: lstm(32, 64),
}
