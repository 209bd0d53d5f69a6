"""The three proofs that a block is recomputed: same numbers, ran again, keeps less.

A layer under test is *marked*: its call ends in a softsign and an arc tangent, in the plain model and
in the wrapped one. Plain autodiff keeps the softsign's result for the gradient of the arc tangent,
a recomputed block does not; and how often the mark was computed tells how often the block ran.
"""

import functools
import inspect
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import steps
import targets

from keras_remat import is_recomputing
from keras_remat.replay.marks import unconverted

MARK = "Atan"


class Run(NamedTuple):
    """One run of a marked layer: in which graph (None if eager), and its intermediate tensor."""

    again: bool
    graph: Any
    inner: Any

    def is_held(self):
        """True if somebody holds the eager intermediate."""
        return self.inner() is not None

    def readers(self):
        """The ops that read the intermediate of a graph, the mark itself left out."""
        return [op for op in self.inner.consumers() if op.type != MARK]


def mark(target, layer):
    """Mark `layer`; the list that is returned gets a `Run` for each run of its call."""
    if target.tf is None:
        return target.framework.mark(target, layer)
    tf, runs, original = target.tf, [], layer.call

    @functools.wraps(original)
    def call(*args, **kwargs):
        return note(original(*args, **kwargs))

    @unconverted
    def note(outputs):
        marked = [_mark_tensor(tf, t, runs) for t in tf.nest.flatten(outputs)]
        return tf.nest.pack_sequence_as(outputs, marked)

    call.__signature__ = inspect.signature(original)
    layer.call = call
    return runs


def _mark_tensor(tf, tensor, runs):
    if not isinstance(tensor, tf.Tensor) or not steps.is_float(tensor):
        return tensor
    # In float32, for which every TensorFlow has these ops.
    inner = tf.nn.softsign(tf.cast(tensor, tf.float32))
    outer = tf.cast(tf.atan(inner), tensor.dtype)
    if hasattr(inner, "numpy"):
        runs.append(Run(is_recomputing(), None, weakref.ref(inner)))
    else:
        runs.append(Run(is_recomputing(), inner.graph, inner))
    for name in ("_uses_learning_phase", "_keras_mask"):
        if hasattr(tensor, name):
            setattr(outer, name, getattr(tensor, name))
    return outer


def count_marks(graph):
    return sum(op.type == MARK for op in graph.get_operations())


def floats(*shape, seed=0):
    """Normal random numbers as float32."""
    return np.random.RandomState(seed).randn(*shape).astype("float32")


def ints(*shape, high=10, seed=0):
    """Token ids as int32."""
    return np.random.RandomState(seed).randint(0, high, shape).astype("int32")


def zoo(cases):
    """Parametrises a test with `case`, from {"Class name and more": case}; the class must exist."""
    params = [
        pytest.param(case, id=name, marks=pytest.mark.needs(name.split()[0])) for name, case in cases.items()
    ]
    return pytest.mark.parametrize("case", params)


def assert_ran_again(runs, plain_runs):
    """In eager each call ran twice, the second time told so; a graph holds each call twice."""
    assert runs, "the block did not run"
    if hasattr(runs, "wait"):  # nobody tells a run that it is the second: it ran twice as often
        assert len(runs) == 2 * len(plain_runs)
    elif runs[-1].graph is None:
        again = [run.again for run in runs]
        assert again.count(True) == again.count(False) == len(runs) // 2
    else:
        in_graph = [run for run in runs if run.graph is runs[-1].graph]
        assert not any(run.again for run in in_graph)
        assert count_marks(runs[-1].graph) == 2 * len(in_graph)


def assert_ran_once(runs):
    """Nothing ran again, and no graph holds what would."""
    assert runs, "the block did not run"
    if hasattr(runs, "wait"):
        return
    for run in runs:
        assert not run.again
    graph = runs[-1].graph
    if graph is not None:
        assert count_marks(graph) == sum(run.graph is graph for run in runs)
        assert not [op for op in graph.get_operations() if op.name.startswith("recompute")]


def assert_keeps_less(plain, wrapped):
    """`plain` and `wrapped`: for each run, whether something keeps its intermediate for the gradient."""
    assert any(plain), "the plain model keeps nothing: the proof shows nothing"
    assert wrapped and not any(wrapped), "the wrapped model keeps what is inside the block"


def assert_same(name, expected, received, tolerance=0.0, rounding=0.0):
    """Two arrays, sparse gradients or Nones are equal, up to `tolerance` times the largest number.

    Or up to `rounding`, where that is more.
    """
    assert type(expected) is type(received), f"{name}: {type(expected)}, {type(received)}"
    if isinstance(expected, steps.Sparse):
        assert_same(name + " indices", expected.indices, received.indices)
        assert_same(name + " values", expected.values, received.values, tolerance, rounding)
    elif expected is not None:
        expected, received = np.asarray(expected), np.asarray(received)
        assert expected.shape == received.shape, name
        assert np.all(np.isfinite(expected)), f"{name} is not finite in the plain model"
        if expected.size:
            apart = np.max(np.abs(np.asarray(expected, "float64") - received))
            allowed = max(tolerance * np.max(np.abs(expected)), rounding)
            assert apart <= allowed, f"{name}: {apart} apart"


class Result(NamedTuple):
    """What training gave: `steps`, `weights`, and predictions."""

    steps: Any
    weights: Any
    prediction: Any


def assert_same_results(plain, wrapped, tolerance, predict=True):
    """Losses, gradients, weights, state and predictions of two models are the same."""
    nearer = tolerance / 10 if tolerance == targets.COMPILED else tolerance  # what is not a gradient
    assert len(plain.steps) == len(wrapped.steps)
    for number, (one, other) in enumerate(zip(plain.steps, wrapped.steps)):
        assert_same(f"loss of step {number}", one.loss, other.loss, nearer)
        assert len(one.grads) == len(other.grads)
        rounding = _rounding(one.grads) if tolerance else 0.0
        for i, grads in enumerate(zip(one.grads, other.grads)):
            assert_same(f"gradient {i} of step {number}", *grads, tolerance=tolerance, rounding=rounding)
    assert len(plain.weights) == len(wrapped.weights)
    for i, weights in enumerate(zip(plain.weights, wrapped.weights)):
        assert_same(f"weight {i}", *weights, tolerance=nearer)
    if predict:
        assert_same("prediction", plain.prediction, wrapped.prediction, nearer)


def _rounding(grads):
    """What sums in another order differ by. The gradient of the bias of attention's keys is that alone."""
    grads = [g.values if isinstance(g, steps.Sparse) else g for g in grads if g is not None]
    return np.finfo("float32").eps * max((np.max(np.abs(g)) for g in grads if g.size), default=0.0)


def list_weights(model):
    """The weights of a model, each once, layer by layer."""
    layers = getattr(model, "layers", None) or [model]
    target = targets.current()
    found = {id(weight): weight for layer in layers for weight in target.weights_of(layer)}
    return list(found.values())


def set_weights(model, seed=7):
    """Give a model the same weights whatever its initializers drew; state is positive."""
    rng = np.random.RandomState(seed)
    trainable = {id(weight) for weight in model.trainable_weights}
    weights = [w for w in list_weights(model) if "float" in str(w.dtype)]
    values = [rng.uniform(-0.6, 0.6, tuple(map(int, w.shape))) for w in weights]
    values = [v if id(w) in trainable else np.abs(v) + 0.1 for v, w in zip(values, weights)]
    targets.current().set_values(list(zip(weights, values)))


def get_weights(model):
    """The values of a model's weights."""
    return targets.current().get_values(list_weights(model))
