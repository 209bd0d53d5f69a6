"""Attention: several inputs, the same tensor several times, masks and dropout."""

import pytest
from proofs import floats, ints

pytestmark = pytest.mark.modes("loop", "function", "graph")

QUERY, VALUE = floats(2, 3, 4), floats(2, 5, 4, seed=1)


@pytest.mark.needs("Attention")
@pytest.mark.parametrize("name", ["Attention", "AdditiveAttention"])
def test_attention(name, prove, L):
    prove(lambda: getattr(L, name)(use_scale=True), QUERY, VALUE)


@pytest.mark.needs("Attention")
def test_same_tensor_three_times(prove, L):
    prove(
        lambda: L.Attention(use_scale=True),
        QUERY,
        call=lambda layer, x: layer([x, x, x]),
    )


@pytest.mark.needs("Attention")
def test_masks(prove, L):
    def call(layer, x, y):
        embed = L.Embedding(10, 4, mask_zero=True)
        return layer([embed(x), embed(y)])

    prove(lambda: L.Attention(), ints(2, 3, high=3), ints(2, 5, high=3, seed=1), call=call)


@pytest.mark.needs("MultiHeadAttention")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_multi_head(dropout, prove, L):
    def call(layer, x, y):
        return layer(x, y)

    def make():
        return L.MultiHeadAttention(2, 3, dropout=dropout)

    prove(make, QUERY, VALUE, call=call, subclass=True)


@pytest.mark.needs("MultiHeadAttention")
def test_multi_head_with_keywords(prove, L):
    def call(layer, x, mask):
        return layer(x, value=x, key=x, attention_mask=mask, return_attention_scores=True)

    mask = ints(2, 3, 3, high=2) > 0
    mask[:, :, 0] = True
    prove(lambda: L.MultiHeadAttention(2, 3), QUERY, mask, call=call, subclass=True)
