"""`recompute_enabled`, the variable RECOMPUTE, and that nothing is left of a wrapper when it is off."""

import pytest
from proofs import floats

from keras_remat import Recompute, is_recomputing, recompute_enabled

X = floats(4, 6)


def is_recomputed(target):
    """True if a wrapper that is called now in a graph is recomputed."""
    return any(op.get("gradient") for op in trace(target, Recompute))


def trace(target, wrap):
    """The ops of a training graph, as dicts."""
    tf, L = target.tf, target.keras.layers
    target.reset()
    layers = [L.Dense(6, activation="tanh"), L.BatchNormalization(), L.Dropout(0.5, seed=3)]
    first, last = L.Activation("linear", input_shape=(6,)), L.Dense(2)
    model = target.keras.Sequential([first] + [wrap(layer) for layer in layers] + [last])
    if target.is_symbolic:
        return describe(model.outputs[0].graph)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
        return tape.gradient(outputs, model.trainable_weights)

    return describe(step.get_concrete_function(tf.constant(X)).graph)


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


@pytest.mark.modes("function", "graph")
def test_on_by_default(mode, target):
    assert is_recomputed(target)


@pytest.mark.modes("function", "graph")
@pytest.mark.parametrize("value, expected", [("0", False), ("1", True), ("", True)])
def test_variable(value, expected, mode, target, monkeypatch):
    monkeypatch.setenv("RECOMPUTE", value)
    assert is_recomputed(target) == expected


@pytest.mark.modes("function", "graph")
def test_context_wins_and_nests(mode, target, monkeypatch):
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
def test_off_between_the_runs(mode, keras, L, tf):
    """What was recorded is run again, whatever the switch says by then."""
    layer = Recompute(L.Dense(3, activation="tanh"))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant(X)))
    with recompute_enabled(False):
        grads = tape.gradient(loss, layer.trainable_weights)
    assert all(grad is not None for grad in grads)


@pytest.mark.modes("loop")
def test_is_recomputing(mode, keras, tf):
    seen = []
    layer = keras.layers.Lambda(lambda x: seen.append(is_recomputing()) or x * x)
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = Recompute(layer)(x)
        seen.append(is_recomputing())
    tape.gradient(outputs, x)
    assert seen == [False, False, True] and not is_recomputing()
