"""Marks and training steps on JAX: how often a block ran is told by callbacks, which run when it does."""

from typing import Any, NamedTuple

import jax
import numpy as np
import steps


class Run(NamedTuple):
    """One run of a marked layer, with the value of its intermediate tensor."""

    value: Any


def tensor(x):
    return jax.numpy.asarray(x)


def mark(target, layer):
    """Mark `layer`; the list that is returned gets a `Run` whenever it is computed, compiled or not."""
    runs, ops = Runs(), target.keras.ops

    def note(output):
        if not isinstance(output, jax.Array) or not steps.is_float(output):
            return output
        # Plain autodiff keeps both factors of a product.
        inner = jax.nn.soft_sign(output)
        jax.debug.callback(lambda value: list.append(runs, Run(np.array(value, "float32"))), inner)
        marked = inner * ops.tanh(output)
        if target.mask_of(output) is not None:
            target.set_mask(marked, target.mask_of(output))
        return marked

    steps.change_call(
        layer, lambda call: lambda *args, **kwargs: jax.tree_util.tree_map(note, call(*args, **kwargs))
    )
    return runs


class Runs(list):
    """A list of runs: callbacks come later than the code that they are in."""

    def wait(self):
        jax.effects_barrier()
        return self


def which_are_kept(runs, residuals):
    """For each run, whether its intermediate is among the arrays that the gradient keeps."""
    residuals = [np.array(r, "float32") for r in residuals if steps.is_float(r)]
    return [any(np.array_equal(r, run.value) for r in residuals) for run in runs]


class Watch:
    """Notes the inputs of layers, and tells which of them are residuals."""

    def __init__(self):
        self.values, self.count = {}, 0

    def __call__(self, layer):
        position = self.count
        self.count += 1

        def change(call):
            def noted(inputs, **kwargs):
                jax.debug.callback(lambda value: self.values.update({position: np.array(value)}), inputs)
                return call(inputs, **kwargs)

            return noted

        steps.change_call(layer, change)
        return layer

    def kept(self, target, mode, model, x):
        """The positions of the layers whose inputs are residuals, "other" for all else but weights."""
        weights = [w.value for w in model.trainable_variables]

        def run(weights, x):
            return jax.vjp(lambda w, x: model.stateless_call(w, [], x, training=True)[0], weights, x)

        pull = (jax.jit(run) if mode == "function" else run)(weights, tensor(x))[1]
        jax.effects_barrier()
        residuals = {id(r): r for r in jax.tree_util.tree_leaves(pull) if r.shape[:1] == x.shape[:1]}
        return sorted(map(self._position, residuals.values()), key=str)

    def _position(self, residual):
        for position, value in self.values.items():
            if value.shape == residual.shape and np.allclose(value, residual, atol=1e-6):
                return position
        return "other"


def program(function, weights, x, differentiated):
    """What XLA is given to compile for `function(weights, x)`, or for its gradient."""
    return jax.jit(jax.grad(function) if differentiated else function).lower(weights, x).as_text()


def is_recomputed(function):
    """True if a gradient of `function` runs it again."""
    traced = jax.make_jaxpr(jax.grad(lambda x: function(x).sum()))(np.ones((2, 3), "float32"))
    return _count_blocks(traced) > 0


def differentiate(function, arrays, mode):
    """Outputs of `function(*tensors)`, and gradients of the sum of their squares."""

    def run(floats, others):
        found = function(*map(lambda one, other: other if one is None else one, floats, others))
        outputs = [t for t in jax.tree_util.tree_leaves(found) if isinstance(t, jax.Array)]
        return sum((t * t).sum() for t in outputs if steps.is_float(t)), outputs

    floats = [tensor(a) if steps.is_float(a) else None for a in arrays]
    others = [None if steps.is_float(a) else tensor(a) for a in arrays]
    run = jax.grad(run, has_aux=True)
    grads, outputs = (jax.jit(run) if mode == "function" else run)(floats, others)
    return [np.array(r) for r in (*outputs, *(g for g in grads if g is not None))]


def penalty(block, x, mode):
    """The loss with a gradient penalty, and its gradients."""
    state = [variable.value for variable in block.non_trainable_variables]

    def loss(x, weights):
        return jax.numpy.sin(block.stateless_call(weights, state, x, training=True)[0]).sum()

    def total(x, weights):
        value, slope = jax.value_and_grad(loss)(x, weights)
        return value + (slope * slope).sum()

    step = jax.value_and_grad(total, (0, 1))
    weights = [variable.value for variable in block.trainable_variables]
    found = (jax.jit(step) if mode == "function" else step)(tensor(x), weights)
    return list(map(np.array, jax.tree_util.tree_leaves(found)))


def derivatives(function, x, order):
    """The function's values, and those of its derivatives up to `order`."""
    found = [function]
    for _ in range(order):
        found.append(jax.grad(lambda x, last=found[-1]: last(x).sum()))
    return [np.array(one(tensor(x))) for one in found]


def jacobian(function, x, vectorized):
    return np.array((jax.jacrev if vectorized else jax.jacfwd)(function)(tensor(x)))


class Loop:
    """A gradient of `stateless_call`, eager."""

    def __init__(self, target, mode, model, before_gradient=None):
        self.model, self.target = model, target
        self.residuals = []
        self.before_gradient = before_gradient or (lambda: None)
        self._step = jax.jit(self.step) if mode == "function" else self.step

    def loss(self, floats, weights, state, x, y):
        floats = iter(floats)
        x = [next(floats) if steps.is_float(part) else part for part in x]
        # Keras 3.15 knows a layer's losses by their ids, which an eager `stateless_call` clears too late: a
        # loss that gets the id of one of the last step's is dropped, about one in a thousand.
        self.model._clear_losses()
        outputs, state, losses = self.model.stateless_call(
            weights, state, x if len(x) > 1 else x[0], training=True, return_losses=True
        )
        loss = jax.numpy.mean(jax.numpy.square(outputs.astype("float32") - y))
        return loss + sum(losses), state

    def step(self, weights, state, x, y):
        floats = [part for part in x if steps.is_float(part)]
        loss, pull, state = jax.vjp(lambda f, w: self.loss(f, w, state, x, y), floats, weights, has_aux=True)
        if not isinstance(loss, jax.core.Tracer):
            self.residuals[:] = jax.tree_util.tree_leaves(pull)
            self.before_gradient()
            self.residuals[:] = []
        floats, weights = pull(jax.numpy.ones_like(loss))
        return loss, [*floats, *weights], state

    def train(self, x, y, count):
        return [self._train_once(x, y) for _ in range(count)]

    def _train_once(self, x, y):
        weights, state = self.model.trainable_variables, self.model.non_trainable_variables
        loss, grads, values = self._step(*self._arguments(x, y))
        for variable, value in zip(state, values):
            variable.assign(value)
        for weight, grad in zip(weights, grads[len(grads) - len(weights) :]):
            weight.assign(weight.value - steps.RATE * grad)
        return steps.Step(float(loss), [np.array(g) for g in grads])

    def temporary_bytes(self, x, y):
        """What the compiled step sets aside beside its arguments and results."""
        return self.lowered(x, y).compile().memory_analysis().temp_size_in_bytes

    def lowered(self, x, y):
        """The step as XLA is given it."""
        return self._step.lower(*self._arguments(x, y))

    def blocks(self, x, y):
        """How many blocks a step computes again."""
        return _count_blocks(jax.make_jaxpr(self.step)(*self._arguments(x, y)))

    def _arguments(self, x, y):
        variables = self.model.trainable_variables, self.model.non_trainable_variables
        return (*([v.value for v in part] for part in variables), [tensor(part) for part in x], tensor(y))

    def predict(self, x):
        x = [tensor(part) for part in x]
        return np.array(self.model(x if len(x) > 1 else x[0], training=False))


def _count_blocks(traced):
    return sum(eqn.params.get("differentiated", False) for eqn in _equations(traced.jaxpr))


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree_util.tree_leaves(list(eqn.params.values())):
            if hasattr(inner, "eqns"):
                yield from _equations(getattr(inner, "jaxpr", inner))
