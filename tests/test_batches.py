"""The largest batch is what trying all finds, and costs of any batch size follow from those of two."""

import numpy as np
import pytest
from models import Kit, each, in_a_row, make_chain, make_plain_nest, make_skips

from keras_remat import BudgetError, RematError, max_batch_size, plan
from keras_remat.families import family_of
from keras_remat.planning import models
from keras_remat.planning.calls import Calls, chain
from keras_remat.planning.scaling import scaled, scaled_part
from keras_remat.plans import Sizes

MEMORY = 60_000
ALL_MODELS = pytest.mark.needs("all models")


def trace(model, batch_size, shape=None):
    part, reason = models.part_with_costs(family_of(model), model, Sizes(batch_size, shape))
    assert reason is None
    return part


def bytes_in(part):
    """The calls of a part with the bytes of tensors alone: work of loops, say, is on no line."""
    calls = models.flat(part)
    costs = [cost._replace(work=0.0, tail=0.0, transient=0) for cost in calls.costs]
    return calls._replace(costs=costs)


@each("convolutions", "nested", "penalties", "states")
def test_costs_of_a_batch_follow_from_two(case, target):
    model = case.make(Kit(target))
    ends = [(n, trace(model, n)) for n in (2, 3)]
    for n in (5, 7):  # a batch of one may be special
        assert bytes_in(scaled_part(*ends, n)) == bytes_in(trace(model, n))


@pytest.mark.parametrize("recurrent", [False, pytest.param(True, marks=ALL_MODELS)], ids=["", "recurrent"])
def test_costs_of_a_length_follow_from_two(recurrent, keras, L):
    layers = [L.Conv1D(4, 3, activation="relu"), L.Dropout(0.1), L.Dense(2)]
    layers += [L.LSTM(4, return_sequences=True)] if recurrent else []
    model = in_a_row(keras, (None, 6), layers)
    ends = [(n, trace(model, 3, (3, n, 6))) for n in (8, 9)]
    for n in (5, 20):
        assert bytes_in(scaled_part(*ends, n)) == bytes_in(trace(model, 3, (3, n, 6)))


def test_attention_is_no_line(keras, L):
    """What is kept of it grows with the square of the length, which a third trace shows."""
    inputs = keras.Input((None, 6))
    scores = L.Softmax()(L.Dot(2)([inputs, inputs]))
    model = keras.Model(inputs, L.Dense(2)(L.Dot((2, 1))([scores, inputs])))
    ends = [(n, trace(model, 3, (3, n, 6))) for n in (8, 9)]
    assert bytes_in(scaled_part(*ends, 20)) != bytes_in(trace(model, 3, (3, 20, 6)))


def test_lines():
    def calls(n):
        return chain([4 * n, 10, 3 * n + 5], work=[n, 2 * n, 7])

    for n in (1, 5, 90):
        assert scaled((2, calls(2)), (3, calls(3)), n) == calls(n)
        assert scaled((10, calls(10)), (30, calls(30)), n) == calls(n)


@pytest.mark.parametrize(
    "other",
    [
        Calls(chain([8, 8]).costs[:1], chain([8, 8]).sizes, chain([8, 8]).results),
        Calls(chain([8, 8]).costs, {0: 8}, chain([8, 8]).results),
        Calls(chain([8, 8]).costs, chain([8, 8]).sizes, (0,)),
        Calls(tuple(c._replace(needs=frozenset()) for c in chain([8, 8]).costs), {0: 8, 1: 8}, (1,)),
        chain([9, 8]),  # a batch of 4 has half a byte
    ],
)
def test_what_is_no_line(other):
    assert scaled((2, chain([4, 4])), (4, other), 3) is None


def bytes_of(weights):
    """Bytes of weights of four bytes each; a seed may be one."""
    return sum(4 * int(np.prod(tuple(weight.shape))) for weight in weights)


def brute_force(model, memory, resident, **options):
    """The largest batch, with a plan made for each."""
    n = 0
    while resident + plan(model, batch_size=n + 1, **options).peak_bytes <= memory:
        n += 1
    return n


EVERYWHERE = {(make_chain, "auto"), (make_chain, "every"), (make_skips, "sqrt"), (make_plain_nest, 2)}


@pytest.mark.parametrize(
    "make, strategy",
    [
        pytest.param(make, strategy, marks=[] if (make, strategy) in EVERYWHERE else ALL_MODELS)
        for make in (make_chain, make_skips, make_plain_nest)
        for strategy in ("auto", "sqrt", "every", 2)
    ],
)
def test_the_largest_batch(make, strategy, target):
    model = make(Kit(target))
    trained, others = map(bytes_of, (model.trainable_weights, model.non_trainable_weights))
    resident = 4 * trained + others  # weights, gradients and two slots
    memory = resident + 3000
    found = max_batch_size(model, memory, strategy=strategy)
    assert found == brute_force(model, memory, resident, strategy=strategy) > 1


def test_without_recomputation(target):
    model = make_chain(Kit(target), 16)
    assert max_batch_size(model, MEMORY) > 1.5 * max_batch_size(model, MEMORY, strategy=None) > 1


@pytest.mark.needs("version 1 models")
def test_slots_of_a_compiled_model_are_not_known(target):
    model = make_chain(Kit(target))
    model.compile(target.sgd(), "mse")
    with pytest.raises(RematError, match="Received: a model that was compiled with SGD"):
        max_batch_size(model, MEMORY)


@pytest.mark.needs("eager variables")
def test_slots_are_those_of_the_optimizer(target, keras, L):
    model = in_a_row(keras, (50,), [L.Dense(n, activation="tanh") for n in (100, 1)])
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam()]
    found = [max_batch_size(model, MEMORY * 2)]
    for optimizer in optimizers:
        model.compile(optimizer, "mse")
        found.append(max_batch_size(model, MEMORY * 2))
        assert not any(len(v.shape) for v in variables(optimizer))  # the optimizer itself is left alone
    none, momentum, adam = found
    assert none == adam
    slot = 4 * model.count_params()
    sample = plan(model, batch_size=101).peak_bytes - plan(model, batch_size=100).peak_bytes
    assert momentum - adam == pytest.approx(slot / sample, abs=1)


def variables(optimizer):
    found = optimizer.variables
    return found() if callable(found) else found


def test_costs_that_are_no_line(target, keras, L, ops):
    """Products of all pairs of samples: each batch size that is tried is traced."""

    class Pairs(keras.layers.Layer):
        def call(self, inputs):
            pairs = ops.matmul(inputs, ops.transpose(inputs))
            return ops.matmul(ops.tanh(pairs), inputs)

    model = in_a_row(keras, (4,), [Pairs(), L.Dense(4), L.Dense(2)])
    resident = 4 * 4 * model.count_params()
    memory = resident + 4000
    assert max_batch_size(model, memory) == brute_force(model, memory, resident) > 5


def test_memory_that_is_too_small(target):
    model = make_chain(Kit(target))
    with pytest.raises(
        BudgetError, match="of one sample must fit the memory. Received: 1000 bytes"
    ) as caught:
        max_batch_size(model, "1kB")
    smallest = caught.value.smallest
    assert max_batch_size(model, smallest) == 1
    with pytest.raises(BudgetError):
        max_batch_size(model, smallest - 1)


WRONG = {
    "a layer": (lambda keras: max_batch_size(keras.layers.Dense(2), "8GB"), "of a Sequential"),
    "memory": (lambda keras: max_batch_size(make(keras), "much"), "Received: 'much'"),
    "strategy": (lambda keras: max_batch_size(make(keras), "8GB", strategy="some"), "'some'"),
    "fixed": (lambda keras: max_batch_size(make(keras), "8GB", input_shapes=(8, 9, 6)), "batch dimension"),
    "open": (lambda keras: max_batch_size(make(keras), "8GB"), "must give the dimensions"),
}


def make(keras):
    return in_a_row(keras, (None, 6), [keras.layers.Dense(3, name="dense")])


@pytest.mark.parametrize("wrong, message", WRONG.values(), ids=WRONG)
def test_wrong_arguments(wrong, message, keras):
    with pytest.raises(RematError, match=message):
        wrong(keras)


def test_open_dimensions_that_are_given(keras):
    short, long = (max_batch_size(make(keras), MEMORY, input_shapes=(None, n, 6)) for n in (10, 100))
    assert short > 5 * long > 5
