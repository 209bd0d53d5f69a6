"""What is compiled of a converted model where nothing is recomputed: op for op the plain model's program."""

import pytest
from model_proofs import COPY, cut
from models import Kit, make_nested
from proofs import floats, mark

from keras_remat import recompute_all, recompute_enabled, restore

X, Y = floats(4, 6), floats(4, 2, seed=5)
CONVERSIONS = {
    "sqrt": {"strategy": "sqrt"},
    "every": {"strategy": "every"},
    "match": {"match": ["dense.*", "shared", "first"]},
}


def ops_of(graph):
    return [(op.type, op.name, [t.name for t in op.inputs]) for op in graph.get_operations()]


def graph_of(target, change, use):
    """The graph in which `use(model)` runs the model that was changed by `change`."""
    target.reset()
    kit = Kit(target, marked=True)
    model = make_nested(kit)
    change(model)
    model.compile(target.sgd(), "mse")
    kit.take_runs()
    use(model)
    return ops_of(kit.runs()[-1].graph)


USES = {
    "predict": lambda model: model.predict(X),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
}


@pytest.mark.modes("function")
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("options", CONVERSIONS.values(), ids=CONVERSIONS)
def test_inference_is_op_for_op_the_plain_one(options, use, target, tf, mode):
    """Where Keras makes a graph of its own for it."""
    plain = graph_of(target, lambda model: None, use)
    assert graph_of(target, lambda model: recompute_all(model, **options), use) == plain


def fit(model):
    model.fit(X, Y, verbose=0)


@pytest.mark.modes("function")
@pytest.mark.parametrize("options", CONVERSIONS.values(), ids=CONVERSIONS)
def test_switched_off_it_is_op_for_op_the_plain_one(options, target, tf, mode, monkeypatch):
    def convert(model):
        recompute_all(model, **options)

    plain = graph_of(target, lambda model: None, fit)
    assert any(COPY.match(name) for _, name, _ in graph_of(target, convert, fit))
    with recompute_enabled(False):
        assert graph_of(target, convert, fit) == plain
    monkeypatch.setenv("RECOMPUTE", "0")
    assert graph_of(target, convert, fit) == plain


def test_restored_it_is_op_for_op_the_plain_one(target, tf):
    def fitted(change):
        target.reset()
        model = make_nested(Kit(target))
        change(model)
        model.compile(target.sgd(), "mse")
        here = mark(target, model.layers[-1])
        fit(model)
        graph = here[-1].graph if here else model.outputs[0].graph
        ops = ops_of(graph)
        return [op for op in ops if COPY.match(op[1])], len(ops), bool(here)

    plain = fitted(lambda model: None)
    restored = fitted(lambda model: restore(cut(model)))
    assert restored[0] == plain[0] == []
    assert restored[1] == plain[1] or not plain[2]


def program_of(target, change, training):
    """The text that JAX gives to XLA: of a prediction, or of a loss and its gradient."""
    target.reset()
    model = make_nested(Kit(target))
    change(model)
    state = [variable.value for variable in model.non_trainable_variables]
    return target.framework.program(
        lambda weights, x: model.stateless_call(weights, state, x, training=training)[0].sum(),
        [variable.value for variable in model.trainable_variables],
        X,
        differentiated=training,
    )


@pytest.mark.needs("jax")
@pytest.mark.parametrize("options", CONVERSIONS.values(), ids=CONVERSIONS)
def test_programs_of_jax(options, target, monkeypatch):
    def convert(model):
        recompute_all(model, **options)

    def convert_and_restore(model):
        restore(recompute_all(model, **options))

    for training in (False, True):
        plain = program_of(target, lambda model: None, training)
        assert (program_of(target, convert, training) == plain) == (not training)
        assert program_of(target, convert_and_restore, training) == plain
        with recompute_enabled(False):
            assert program_of(target, convert, training) == plain
        with monkeypatch.context() as patch:
            patch.setenv("RECOMPUTE", "0")
            assert program_of(target, convert, training) == plain
