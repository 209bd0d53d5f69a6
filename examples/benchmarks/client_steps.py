"""One forward and backward pass in each framework: what is kept between the two, and all that comes out.

PyTorch: the storages that autograd saves, and tensors that Python holds, which were not there before.
JAX: the arrays in the function that `jax.vjp` returns. TensorFlow: what the heap has grown by when the
forward pass has ended. Weights and state do not count.
"""

import gc
from typing import Any, NamedTuple

import keras
import numpy as np


class Step(NamedTuple):
    """Bytes kept for the backward pass; loss, gradients and state as arrays of NumPy."""

    kept: int
    loss: Any
    gradients: Any
    state: Any


def loss_of(outputs, targets):
    """Return the mean squared distance of all outputs from their targets."""
    squares = [keras.ops.mean((x - y) ** 2) for x, y in zip(keras.tree.flatten(outputs), targets)]
    return sum(squares[1:], squares[0])


def step_of_torch(model, inputs, targets, heap):
    import torch

    inputs, targets = _tensors(inputs), _tensors(targets)
    held, kept = _held_tensors(torch), {}  # what is held cannot be freed, and its place used again
    before = {_place(x) for x in held}

    def note(tensor):
        if _place(tensor) not in before:
            kept[_place(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = loss_of(model(inputs, training=True), targets)
    for tensor in _held_tensors(torch):
        note(tensor)
    weights = [v.value for v in model.trainable_variables]
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    return Step(sum(kept.values()), *_arrays(model, loss.detach(), gradients))


def _held_tensors(torch):
    gc.collect()
    return [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]


def _place(tensor):
    return tensor.untyped_storage().data_ptr()


def step_of_jax(model, inputs, targets, heap):
    import jax

    inputs, targets = _tensors(inputs), _tensors(targets)
    weights = [v.value for v in model.trainable_variables]
    state = [v.value for v in model.non_trainable_variables]

    def run(weights):
        outputs, new = model.stateless_call(weights, state, inputs, training=True)
        return loss_of(outputs, targets), new

    loss, backward, new = jax.vjp(run, weights, has_aux=True)
    known = {x.unsafe_buffer_pointer() for x in weights + state}
    leaves = [x for x in jax.tree.leaves(backward) if hasattr(x, "unsafe_buffer_pointer")]
    sizes = {x.unsafe_buffer_pointer(): x.nbytes for x in leaves}
    kept = sum(size for place, size in sizes.items() if place not in known)
    (gradients,) = backward(jax.numpy.ones_like(loss))
    for variable, value in zip(model.non_trainable_variables, new):
        variable.assign(value)
    return Step(kept, *_arrays(model, loss, gradients))


def step_of_tensorflow(model, inputs, targets, heap):
    import tensorflow as tf

    inputs, targets = _tensors(inputs), _tensors(targets)
    weights = [v.value for v in model.trainable_variables]

    def run():
        gc.collect()
        grown = heap.watch()
        with tf.GradientTape() as tape:
            loss = loss_of(model(inputs, training=True), targets)
        gc.collect()
        heap.watch()  # the peak is now what is in use
        return grown(), loss, tape.gradient(loss, weights)

    run()  # fills caches, which the heap counts too
    kept, loss, gradients = run()
    return Step(kept, *_arrays(model, loss, gradients))


def _tensors(arrays):
    return keras.tree.map_structure(keras.ops.convert_to_tensor, arrays)


def _arrays(model, loss, gradients):
    gradients = [None if g is None else array(g) for g in gradients]
    return array(loss), gradients, [array(v) for v in model.non_trainable_variables]


def array(value):
    """Return a copy of a tensor or variable as an array of NumPy."""
    return np.array(keras.ops.convert_to_numpy(value))


STEPS = {"torch": step_of_torch, "jax": step_of_jax, "tensorflow": step_of_tensorflow}
