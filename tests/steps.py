"""One training step of a model in each mode, so that two models can be compared number by number."""

import functools
import inspect
from typing import Any, List, NamedTuple

import numpy as np

RATE = 0.1


class Step(NamedTuple):
    """What a step gave: its loss, and all gradients (of inputs, then of weights) where it shows them."""

    loss: float
    grads: List[Any]


class Sparse(NamedTuple):
    """A gradient that came as IndexedSlices."""

    indices: Any
    values: Any


def trainer(target, mode, model, **options):
    """What runs training steps of `model` in `mode`; it has `train(x, y, steps)` and `predict(x)`."""
    kinds = {"loop": _Loop, "function": _Function, "xla": _Function, "graph": _Graph}
    if target.tf is None:
        kinds = dict.fromkeys(("loop", "function"), target.framework.Loop)
    return kinds.get(mode, _Fit)(target, mode, model, **options)


def loss_of(tf, outputs, y, losses):
    """The mean squared error and the losses that layers added."""
    total = tf.reduce_mean(tf.square(tf.cast(outputs, tf.float32) - y))
    for loss in losses:
        total += loss
    return total


def change_call(layer, change):
    """Let `layer` call `change(original)` in the place of its `call`, with the signature of that."""
    original = layer.call
    call = functools.wraps(original)(change(original))
    call.__signature__ = inspect.signature(original)
    layer.call = call


def is_float(tensor):
    return "float" in str(tensor.dtype)


def to_numpy(grad):
    """A gradient as arrays; None and sparse gradients stay what they are."""
    if grad is None:
        return None
    if hasattr(grad, "indices"):
        return Sparse(np.array(grad.indices), np.array(grad.values))
    return np.array(grad)


class _Loop:
    """A GradientTape around eager calls. `before_gradient` runs while the tape holds the step."""

    def __init__(self, target, mode, model, before_gradient=None):
        self.tf, self.model = target.tf, model
        self.before_gradient = before_gradient or (lambda: None)

    def train(self, x, y, steps):
        return [self._train_once(x, y) for _ in range(steps)]

    def _train_once(self, x, y):
        loss, grads = self.step(self._tensors(x), self.tf.constant(y))
        return Step(float(loss), [to_numpy(g) for g in grads])

    def _tensors(self, x):
        return [self.tf.constant(part) for part in x]

    def step(self, x, y):
        weights = self.model.trainable_weights
        with self.tf.GradientTape() as tape:
            floats = [part for part in x if is_float(part)]
            tape.watch(floats)
            outputs = self.model(x if len(x) > 1 else x[0], training=True)
            loss = loss_of(self.tf, outputs, y, self.model.losses)
        del outputs
        self.before_gradient()
        grads = tape.gradient(loss, floats + list(weights))
        for weight, grad in zip(weights, grads[len(floats) :]):
            if grad is not None:
                weight.assign_sub(RATE * self.tf.convert_to_tensor(grad))
        return loss, grads

    def predict(self, x):
        x = self._tensors(x)
        return self.model(x if len(x) > 1 else x[0], training=False).numpy()


class _Function(_Loop):
    def __init__(self, target, mode, model, before_gradient=None):
        super().__init__(target, mode, model)
        options = {"jit_compile": True} if mode == "xla" else {}
        self.step = self.tf.function(self.step, **options)


class _Fit:
    """`compile` and `fit`: shows losses; a step of SGD shows the gradients in the weights."""

    def __init__(self, target, mode, model, before_gradient=None, **options):
        if mode == "fit-eager":
            options["run_eagerly"] = True
        self.model, self.watching = model, target.watching
        model.compile(target.sgd(RATE), "mse", **options)

    def train(self, x, y, steps):
        x = x if len(x) > 1 else x[0]
        with self.watching():
            history = self.model.fit(x, y, batch_size=len(y), epochs=steps, shuffle=False, verbose=0)
        return [Step(loss, []) for loss in history.history["loss"]]

    def predict(self, x):
        return self.model.predict(x if len(x) > 1 else x[0], verbose=0)


class _Graph:
    """Symbolic gradients, computed by a session."""

    def __init__(self, target, mode, model, before_gradient=None):
        self.target, self.model = target, model
        target.symbolic(self._make)()

    def _make(self):
        tf, backend, model = self.target.tf, self.target.keras.backend, self.model
        y = backend.placeholder((None,) + tuple(model.output_shape[1:]))
        loss = loss_of(tf, model.outputs[0], y, model.losses)
        floats = [part for part in model.inputs if is_float(part)]
        weights = list(model.trainable_weights)
        grads = tf.gradients(loss, floats + [getattr(w, "handle", w) for w in weights])
        self._kinds = [g if g is None else hasattr(g, "indices") for g in grads]
        updates = [
            backend.update(w, w - RATE * tf.convert_to_tensor(g))
            for w, g in zip(weights, grads[len(floats) :])
            if g is not None
        ]
        flat = [part for g in grads if g is not None for part in _parts(g)]
        self._phase = self.target.learning_phase()
        self._step = backend.function(
            list(model.inputs) + [y, self._phase],
            [loss] + flat,
            updates=list(model.updates) + updates,
        )
        self._call = backend.function(list(model.inputs) + [self._phase], [model.outputs[0]])

    def train(self, x, y, steps):
        return [self._train_once(x, y) for _ in range(steps)]

    def _train_once(self, x, y):
        found = iter(self._step(list(x) + [y, True]))
        loss = float(next(found))
        grads = []
        for kind in self._kinds:
            if kind:
                grads.append(Sparse(next(found), next(found)))
            else:
                grads.append(None if kind is None else np.array(next(found)))
        return Step(loss, grads)

    def predict(self, x):
        return self._call(list(x) + [False])[0]


def _parts(grad):
    return [grad.indices, grad.values] if hasattr(grad, "indices") else [grad]
