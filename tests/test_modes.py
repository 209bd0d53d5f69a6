"""Every way of training a model, with blocks that are random, that have state, or both.

Each proof is a test of its own here, so that the mutation check can tell them apart.
"""

import pytest
from proofs import floats


def dense_block(L):
    return L.Dense(6, "tanh")


def dropout_block(L):
    return L.Dropout(0.5, seed=3)


def norm_block(L):
    return L.BatchNormalization(momentum=0.7)


def test_same_numbers(prove, L):
    prove(lambda: dense_block(L), floats(4, 6), again=False, less=False)


def test_ran_again(prove, L):
    prove(lambda: dense_block(L), floats(4, 6), same=False, less=False)


def test_keeps_less(prove, L):
    prove(lambda: dense_block(L), floats(4, 6), same=False, again=False)


# XLA's random numbers are new ones in every run.
@pytest.mark.modes("loop", "function", "fit", "fit-eager", "graph")
def test_same_masks(prove, L):
    prove(lambda: dropout_block(L), floats(4, 6), again=False, less=False)


def test_same_state(prove, L):
    prove(lambda: norm_block(L), floats(4, 6))
