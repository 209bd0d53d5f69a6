"""`recompute_enabled`, the variable RECOMPUTE, and that nothing is left of a wrapper when it is off."""

import contextlib
import functools

import pytest
import steps
from custom import make_layer
from proofs import assert_same, floats, set_weights

from keras_remat import Recompute, is_recomputing, recompute_enabled

X = floats(4, 6)


def is_recomputed(target):
    """True if a wrapper that is called now, where a gradient may be asked for, is recomputed."""
    if target.tf is None:
        target.reset()
        block = Recompute(target.keras.layers.Dense(3, activation="tanh"))
        block.build((2, 3))
        return target.framework.is_recomputed(block)
    return any(op.get("gradient") for op in trace(target, Recompute))


def trace(target, wrap):
    """The ops of a training graph, as dicts; on JAX what XLA is given, as text."""
    tf, L = target.tf, target.keras.layers
    target.reset()
    layers = [L.Dense(6, activation="tanh"), L.BatchNormalization(), L.Dropout(0.5, seed=3)]
    first, last = L.Activation("linear", input_shape=(6,)), L.Dense(2)
    model = target.keras.Sequential([first] + [wrap(layer) for layer in layers] + [last])
    if target.is_symbolic:
        return describe(model.outputs[0].graph)
    if tf is None:
        return program(target, model)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
        return tape.gradient(outputs, model.trainable_weights)

    return describe(step.get_concrete_function(tf.constant(X)).graph)


def program(target, model):
    state = [v.value for v in model.non_trainable_variables]

    def loss(weights, x):
        return model.stateless_call(weights, state, x, training=True)[0].sum()

    weights = [v.value for v in model.trainable_variables]
    return target.framework.program(loss, weights, target.tensor(X), differentiated=True)


def describe(graph):
    """Each op by its type, its inputs by number: names tell the scope of the wrapper."""
    found, numbers = [], {}
    for number, op in enumerate(graph.get_operations()):
        numbers[op.name] = number
        inputs = [(numbers.get(t.op.name), t.value_index) for t in op.inputs]
        found.append({"type": op.type, "inputs": inputs})
        if "_gradient_op_type" in op.node_def.attr:
            found[-1]["gradient"] = op.get_attr("_gradient_op_type")
    return found


@pytest.mark.modes("function", "graph")
def test_off_is_op_for_op_the_plain_graph(mode, target):
    with recompute_enabled(False):
        wrapped = trace(target, Recompute)
    plain = trace(target, lambda layer: layer)
    assert wrapped == plain


def test_on_by_default(target):
    assert is_recomputed(target)


@pytest.mark.parametrize("value, expected", [("0", False), ("1", True), ("", True)])
def test_variable(value, expected, target, monkeypatch):
    monkeypatch.setenv("RECOMPUTE", value)
    assert is_recomputed(target) == expected


def test_context_wins_and_nests(target, monkeypatch):
    monkeypatch.setenv("RECOMPUTE", "0")
    with recompute_enabled(True):
        assert is_recomputed(target)
        with recompute_enabled(False):
            assert not is_recomputed(target)
        assert is_recomputed(target)
    assert not is_recomputed(target)


def test_context_ends_with_an_exception(target):
    with pytest.raises(ValueError), recompute_enabled(False):
        raise ValueError
    assert recompute_enabled(False) is not None and not is_recomputing()


@pytest.mark.modes("loop")
def test_off_between_the_runs(mode, target, keras, L):
    """What was recorded is run again, whatever the switch says by then."""
    found = []
    for flag in (True, False):
        target.reset()
        model = keras.Sequential([Recompute(L.Dense(6, activation="tanh")), L.Dense(2)])
        model.build((None, 6))
        set_weights(model)
        with contextlib.ExitStack() as stack:
            switch = functools.partial(stack.enter_context, recompute_enabled(flag))
            trainer = steps.trainer(target, mode, model, before_gradient=switch)
            found.append(trainer.train([X], floats(4, 2), 1)[0])
    for pair in zip(*(step.grads for step in found)):
        assert_same("gradient", *pair)


@pytest.mark.needs("second runs of Python")
@pytest.mark.modes("loop")
def test_is_recomputing(mode, target, keras, L):
    seen = []

    def call(self, inputs):
        seen.append(is_recomputing())
        return inputs * inputs

    model = keras.Sequential([Recompute(make_layer(keras, call, size=None)), L.Dense(2)])
    model.build((None, 6))
    del seen[:]
    trainer = steps.trainer(target, mode, model, before_gradient=lambda: seen.append(is_recomputing()))
    trainer.train([X], floats(4, 2), 1)
    assert seen == [False, False, True] and not is_recomputing()
