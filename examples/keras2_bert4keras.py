"""Keras 2.3.1 on TensorFlow 1.15: a BERT of bert4keras, recomputed with dropout on.

The model is small and starts from random weights, so nothing is downloaded. It learns which module
of Python's standard library a snippet of source is from, with the bytes as tokens.

    pip install tensorflow==1.15.5 keras==2.3.1 bert4keras==0.11.5 \\
        "numpy<1.19" "h5py<3" "protobuf<3.21"
    python examples/keras2_bert4keras.py [--quick]
"""

import json
import sys
import sysconfig
import tempfile
from pathlib import Path

import keras
import numpy as np
from bert4keras.models import build_transformer_model

from keras_remat import recompute_all

MODULES = ("argparse", "decimal", "datetime", "difflib", "ftplib", "tarfile", "typing", "unittest")
LENGTH = 128
CONFIGURATION = {
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "max_position_embeddings": LENGTH,
    "type_vocab_size": 2,
}


def classifier():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bert_config.json"
        path.write_text(json.dumps(CONFIGURATION))
        bert = build_transformer_model(str(path), model="bert")
    first = keras.layers.Lambda(lambda x: x[:, 0])(bert.output)
    probabilities = keras.layers.Dense(len(MODULES), activation="softmax")(first)
    model = keras.models.Model(bert.inputs, probabilities)
    model.compile(keras.optimizers.Adam(3e-4), "sparse_categorical_crossentropy", ["accuracy"])
    return model


def sources():
    """The source of each module as an array of bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for name in MODULES:
        path = folder / f"{name}.py"
        path = path if path.exists() else folder / name / "case.py"
        yield np.frombuffer(path.read_bytes(), np.uint8)


def batches(size):
    """Endless snippets: tokens and segments (batch, length), numbers of the modules (batch,)."""
    texts = list(sources())
    generator = np.random.RandomState(0)
    while True:
        modules = generator.randint(len(texts), size=size)
        starts = [generator.randint(len(texts[m]) - LENGTH) for m in modules]
        tokens = np.stack([texts[m][s : s + LENGTH] for m, s in zip(modules, starts)])
        yield [tokens, np.zeros_like(tokens)], modules


def main():
    quick = "--quick" in sys.argv
    model = recompute_all(classifier())
    model.fit_generator(batches(16), steps_per_epoch=4 if quick else 60, epochs=1 if quick else 5, verbose=2)


if __name__ == "__main__":
    main()
