"""Recurrent layers: states, masks, both kinds of dropout, and wrappers around them."""

import pytest
from proofs import floats, ints, zoo

pytestmark = pytest.mark.modes("loop", "function", "graph")

SERIES = floats(2, 4, 3)
DROPOUT = {"dropout": 0.4, "recurrent_dropout": 0.4}

LAYERS = {
    "SimpleRNN": lambda L: L.SimpleRNN(4),
    "LSTM": lambda L: L.LSTM(4),
    "GRU": lambda L: L.GRU(4, return_sequences=True),
    "LSTM with state": lambda L: L.LSTM(4, return_sequences=True, return_state=True),
    "LSTM unrolled": lambda L: L.LSTM(4, unroll=True),
    "LSTM backwards": lambda L: L.LSTM(4, go_backwards=True),
    "RNN of a cell": lambda L: L.RNN(L.SimpleRNNCell(4), return_sequences=True),
    "RNN of cells": lambda L: L.RNN([L.LSTMCell(4), L.GRUCell(3)]),
    "Bidirectional": lambda L: L.Bidirectional(L.LSTM(4, return_sequences=True)),
    "TimeDistributed": lambda L: L.TimeDistributed(L.Dense(4, activation="tanh")),
    "SimpleRNN with dropout": lambda L: L.SimpleRNN(4, **DROPOUT),
    "LSTM with dropout": lambda L: L.LSTM(4, **DROPOUT),
    "GRU with dropout": lambda L: L.GRU(4, dropout=0.4),
    "Bidirectional with dropout": lambda L: L.Bidirectional(L.GRU(4, **DROPOUT)),
}


@zoo(LAYERS)
def test_layer(case, prove, L):
    prove(lambda: case(L), SERIES)


@pytest.mark.needs("ConvLSTM2D")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_conv_lstm(dropout, prove, L):
    def make():
        return L.ConvLSTM2D(2, 2, dropout=dropout, recurrent_dropout=dropout)

    prove(make, floats(2, 3, 4, 4, 2))


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_mask(name, prove, L):
    ids = ints(3, 5)
    ids[:, 3:] = 0

    def call(layer, x):
        return layer(L.Embedding(10, 3, mask_zero=True)(x))

    prove(lambda: getattr(L, name)(4, return_sequences=True), ids, call=call)


def test_mask_goes_on(prove, L):
    ids = ints(3, 5)
    ids[:, 3:] = 0

    def call(layer, x):
        return L.SimpleRNN(4)(layer(L.Embedding(10, 3, mask_zero=True)(x)))

    prove(lambda: L.SimpleRNN(4, return_sequences=True), ids, call=call)


def test_mask_made_inside(prove, L):
    ids = ints(3, 5)
    ids[:, 3:] = 0
    prove(
        lambda: L.Embedding(10, 3, mask_zero=True),
        ids,
        call=lambda layer, x: L.SimpleRNN(4)(layer(x)),
    )


def test_mask_given(prove, L):
    def call(layer, x, mask):
        return layer(x, mask=mask)

    mask = ints(2, 4, high=2) > 0
    prove(lambda: L.LSTM(4), SERIES, mask, call=call, subclass=True)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_initial_state(name, prove, L):
    def call(layer, x, *states):
        return layer(x, initial_state=list(states))

    states = [floats(2, 4, seed=i) for i in range(1 + (name == "LSTM"))]
    prove(lambda: getattr(L, name)(4), SERIES, *states, call=call, subclass=True)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_stateful(name, prove, L):
    def make():
        return getattr(L, name)(4, stateful=True, dropout=0.3)

    prove(make, SERIES, batch=2)
