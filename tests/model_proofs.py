"""One run of training that shows the three proofs for a whole model (see `proofs`)."""

import contextlib
import gc
import re
from typing import Any, NamedTuple

import numpy as np
import steps
from models import Kit, set_weights
from proofs import MARK, Result, assert_same, assert_same_results, get_weights

from keras_remat import recompute_all

SOME = "some"
COPY = re.compile(r"recompute(_\d+)?/")  # the names of ops that run again in a graph


def is_recomputed(target, function):
    """True if a gradient of `function` runs it again; in a graph, where the framework has them."""
    if target.tf is None:
        return target.framework.is_recomputed(function)
    tf = target.tf
    with tf.Graph().as_default() as graph:
        x = tf.ones((2, 3))
        tf.gradients(function(x), x)
        return any(COPY.match(op.name) for op in graph.get_operations())


class Trained(NamedTuple):
    """What training gave: its numbers, what was kept, and how often marks ran in the last step."""

    result: Result
    kept: Any
    first: int
    again: int
    blocks: int


def train(target, mode, make, x, convert=None, count=2):
    """Train the model that `make(kit)` makes for `count` steps, converted by `convert` if given."""
    kept = []
    target.reset()
    with target.recording() if convert is None else contextlib.ExitStack():
        kit = Kit(target, marked=True)
        model = make(kit)
        set_weights(model)
        if convert:
            convert(model)

        def before_gradient():
            gc.collect()
            kept[:] = target.kept(kit.runs(), trainer)

        if not target.is_symbolic:
            kit.take_runs()
        trainer = steps.trainer(target, mode, model, before_gradient=before_gradient)
        y = np.random.RandomState(5).randn(len(x[0]), 2).astype("float32")
        taken = trainer.train(x, y, count - 1)
        if not target.traces(mode):
            kit.take_runs()
        taken += trainer.train(x, y, 1)
        runs = kit.runs()
        if target.tf is None:
            kept = target.kept_in_the_end(runs, kept)
        result = Result(taken, get_weights(model), trainer.predict(x))
        if not target.traces(mode):
            blocks = trainer.blocks(x, y) if mode == "function" else None
            return Trained(result, kept, *_count_eager(runs), blocks)
        return Trained(result, *_look_into_graph(_forward_marks(target, model, runs)))


def count_again(runs):
    """How often marks ran again; where nobody tells a run that it is the second, how often they ran."""
    if not hasattr(runs[-1], "again"):
        return len(runs)
    graph = runs[-1].graph
    if graph is None:
        return sum(run.again for run in runs)
    return sum(op.type == MARK and bool(COPY.match(op.name)) for op in graph.get_operations())


def _count_eager(runs):
    again = sum(getattr(run, "again", False) for run in runs)
    return len(runs) - again, again


def _forward_marks(target, model, runs):
    """List the ops that are the marks of a model in the graph of the last step."""
    if not target.is_symbolic:
        return [run.inner.consumers()[0] for run in runs if run.graph is runs[-1].graph]
    found, pending = {}, [t.op for t in model.outputs]
    while pending:
        op = pending.pop()
        if op.name not in found:
            found[op.name] = op
            pending.extend(t.op for t in op.inputs)
    return [op for op in found.values() if op.type == MARK]


def _look_into_graph(marks):
    """What is kept of marks, how many there are, how many run again, and in how many blocks."""
    assert marks, "the model did not run"
    kept = [any(op.type != MARK for op in mark.inputs[0].consumers()) for mark in marks]
    ops = marks[-1].graph.get_operations()
    copies = [op for op in ops if COPY.match(op.name)]
    again = sum(op.type == MARK for op in copies)
    blocks = {op.name.split("/")[0] for op in copies}
    return kept, len(marks), again, len(blocks)


def cut(model):
    """Convert a model so that all of it runs again, whatever that saves."""
    return recompute_all(model, strategy="sqrt")


def prove_model(target, mode, make, x, convert, again=None, unread=0, exact=False, make_other=None):
    """Show the three proofs for a model.

    Args:
      again: how many marks are computed again, by default all; `SOME` where a plan says which.
      unread: how many marks nothing depends on, so that plain autodiff does not keep them.
    """
    plain = _train_plainly(target, mode, make, x)
    converted = train(target, mode, make_other or make, x, convert)
    if exact and target.tolerance(mode) <= 1e-6:
        assert_same_results(plain.result, converted.result, target.tolerance(mode))
    else:
        _assert_close(plain.result, converted.result, max(target.tolerance(mode), 1e-6))
    assert plain.result.steps[0].loss != plain.result.steps[-1].loss, "nothing is learned"
    assert plain.again == 0
    if target.framework_name == "jax":  # where nobody tells a run that it is the second
        converted = converted._replace(first=plain.first, again=converted.first - plain.first)
    assert converted.first == plain.first
    if again == SOME:
        assert 0 < converted.again <= plain.first
        return converted
    wanted = plain.first if again is None else again
    assert wanted - unread <= converted.again <= wanted
    if (mode == "loop" or target.framework_name != "jax" and mode != "fit-eager") and again is None:
        assert sum(plain.kept) >= len(plain.kept) - unread > 0
        assert not any(converted.kept)
    return converted


def _assert_close(plain, converted, tolerance):
    """All numbers are the same up to `tolerance` times the largest of their kind."""
    assert len(plain.steps) == len(converted.steps)
    for number, (one, other) in enumerate(zip(plain.steps, converted.steps)):
        assert_same(f"loss of step {number}", one.loss, other.loss, tolerance)
        assert [g is None for g in one.grads] == [g is None for g in other.grads]
        _assert_all_close(f"gradients of step {number}", one.grads, other.grads, tolerance)
    _assert_all_close("weights", plain.weights, converted.weights, tolerance)
    assert_same("prediction", plain.prediction, converted.prediction, tolerance)


def _assert_all_close(name, expected, received, tolerance):
    assert len(expected) == len(received)
    joined = [np.concatenate([[0.0], *map(_ravel, values)]) for values in (expected, received)]
    assert_same(name, *joined, tolerance=tolerance)


def _ravel(grad):
    if grad is None:
        return np.zeros(1)
    return np.ravel(grad.values if isinstance(grad, steps.Sparse) else grad)


_PLAIN = {}


def _train_plainly(target, mode, make, x):
    """What the plain model gives: trained once for all conversions of it."""
    if (make, mode) not in _PLAIN:
        _PLAIN[make, mode] = train(target, mode, make, x)
    return _PLAIN[make, mode]
