"""Random stacks of layers, cut at random: the numbers are those of the plain stack."""

import pytest
from blocks import Prove
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proofs import floats

from keras_remat import Recompute, RecomputeSequential

# A seed and a name of its own for each layer, so that both models are alike.
LAYERS = {
    "dense": lambda L, i: L.Dense(6, activation="tanh"),
    "relu": lambda L, i: L.Dense(6, activation="relu"),
    "norm": lambda L, i: L.BatchNormalization(momentum=0.7),
    "dropout": lambda L, i: L.Dropout(0.4, seed=i + 1),
    "lstm": lambda L, i: L.LSTM(6, return_sequences=True),
    "conv": lambda L, i: L.Conv1D(6, 2, padding="same"),
    "pool": lambda L, i: L.AveragePooling1D(2, strides=1, padding="same"),
}
STACKS = st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5)


@pytest.mark.modes("loop", "graph")
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(names=STACKS, segments=st.integers(1, 5), nested=st.sets(st.integers(0, 4)))
def test_random_stack(target, mode, names, segments, nested):
    L = target.keras.layers

    def layers(first):
        return [first] + [LAYERS[name](L, i + 1) for i, name in enumerate(names)]

    def wrap(first):
        stack = [Recompute(x) if i in nested else x for i, x in enumerate(layers(first))]
        return RecomputeSequential(stack, segments=segments)

    Prove(target, mode)(
        lambda: L.Dense(6, activation="tanh"),
        floats(2, 4, 6),
        wrap=wrap,
        plain=lambda first: target.keras.Sequential(layers(first)),
        count=2,
        again=0 not in nested,
    )
