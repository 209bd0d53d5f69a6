"""A compiled training step of JAX, and what it holds, by what XLA has planned for it."""

import jax
import keras
from jax import numpy as jnp


def make_step(model, x):
    """Return a function that runs a step and returns its loss and the sum of all gradients."""
    x = keras.tree.map_structure(jnp.asarray, x)
    weights = [variable.value for variable in model.trainable_variables]
    state = [variable.value for variable in model.non_trainable_variables]

    def loss(weights, state, x):
        y, state = model.stateless_call(weights, state, x, training=True)
        return jnp.mean(jnp.square(y.astype("float32"))), state

    def run(weights, state, x):
        (value, _), grads = jax.value_and_grad(loss, has_aux=True)(weights, state, x)
        return value, sum(grad.sum() for grad in grads)

    return _Step(jax.jit(run).lower(weights, state, x).compile(), (weights, state, x))


class _Step:
    def __init__(self, compiled, args):
        self.compiled, self.args = compiled, args

    def __call__(self):
        return self.compiled(*self.args)


def peak(step):
    """Return the bytes that XLA has a place for beside what a step is given and gives."""
    return step.compiled.memory_analysis().temp_size_in_bytes
