"""Models that others wrote: all of `keras.applications`, and backbones of keras-hub made small.

Weights are random, images as small as the architecture takes them from 64 x 64 on, and the batch is
two. Each maker returns a model and its inputs.
"""

import importlib.util

import keras
import numpy as np

BATCH, CLASSES, SIDE, LENGTH, VOCABULARY = 2, 5, 64, 32, 100
#: Where 64 x 64 is too small.
SMALLEST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
QUICK = ("MobileNetV3Small", "ResNet50V2", "keras-hub BERT")


def names():
    """List the names of all models that can be made here."""
    hub = HUB if importlib.util.find_spec("keras_hub") else ()
    found = [name for name, value in vars(keras.applications).items() if callable(value)]
    return sorted(found) + list(hub)


def make(name):
    """Return the model of that name, and its inputs."""
    if name in HUB:
        return HUB[name]()
    side = SMALLEST.get(name, SIDE)
    architecture = getattr(keras.applications, name)
    return architecture(weights=None, input_shape=(side, side, 3), classes=CLASSES), images(side)


def targets(model, inputs):
    """Return a random array for each output of the model."""
    symbols = keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype.name), inputs)
    outputs = keras.tree.flatten(model.compute_output_spec(symbols))
    generator = np.random.RandomState(1)
    return [generator.standard_normal(x.shape).astype(keras.config.floatx()) for x in outputs]


def images(side):
    """Return random images with values from 0 to 255."""
    generator = np.random.RandomState(0)
    return generator.uniform(0, 255, (BATCH, side, side, 3)).astype(keras.config.floatx())


def tokens():
    """Return random tokens, with padding at the end of the second sample."""
    ids = np.random.RandomState(0).randint(0, VOCABULARY, (BATCH, LENGTH)).astype("int32")
    mask = np.ones((BATCH, LENGTH), "int32")
    mask[1, LENGTH // 2 :] = 0
    return {"token_ids": ids, "padding_mask": mask}


def bert():
    from keras_hub.models import BertBackbone

    model = BertBackbone(VOCABULARY, 6, 4, 64, 256, dropout=0.1, max_sequence_length=LENGTH)
    return model, {**tokens(), "segment_ids": np.zeros((BATCH, LENGTH), "int32")}


def gpt2():
    from keras_hub.models import GPT2Backbone

    return GPT2Backbone(VOCABULARY, 6, 4, 64, 256, dropout=0.1, max_sequence_length=LENGTH), tokens()


def gemma():
    from keras_hub.models import GemmaBackbone

    model = GemmaBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=6,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=64,
        intermediate_dim=256,
        head_dim=16,
        dropout=0.1,
    )
    return model, tokens()


def vit():
    from keras_hub.models import ViTBackbone

    model = ViTBackbone((32, 32, 3), 4, 6, 4, 64, 256, dropout_rate=0.1, attention_dropout=0.1)
    return model, images(32)


def resnet():
    from keras_hub.models import ResNetBackbone

    model = ResNetBackbone([64], [7], [64, 128, 256], [2, 2, 2], [1, 2, 2], "basic_block")
    return model, images(SIDE)


HUB = {
    "keras-hub BERT": bert,
    "keras-hub GPT-2": gpt2,
    "keras-hub Gemma": gemma,
    "keras-hub ViT": vit,
    "keras-hub ResNet": resnet,
}
