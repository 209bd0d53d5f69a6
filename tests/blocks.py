"""One block in a small model, plain and wrapped, trained in any mode: what the tests of layers prove with."""

import gc

import numpy as np
import steps
from proofs import (
    Result,
    assert_keeps_less,
    assert_ran_again,
    assert_ran_once,
    assert_same_results,
    get_weights,
    mark,
    set_weights,
)

from keras_remat import Recompute


class Prove:
    """The fixture `prove`: builds a model around a layer, plain and wrapped, and shows the proofs."""

    def __init__(self, target, mode):
        self.target, self.mode = target, mode
        self.tolerance = target.tolerance(mode)

    @property
    def shows_what_is_kept(self):
        """False where nothing of ours runs between `fit` and its gradient."""
        if self.target.framework_name == "jax":
            return self.mode == "loop"
        return self.mode != "fit-eager"

    def __call__(
        self,
        make,
        *x,
        call=None,
        batch=None,
        subclass=False,
        count=3,
        same=True,
        again=True,
        less=True,
        predict=True,
        wrap=Recompute,
        plain=lambda layer: layer,
    ):
        """Prove all three, or those that are asked for, for `make()` called on inputs like `x` (arrays).

        Args:
          make: makes the layer, with `seed=` where it is random.
          x: arrays, the inputs.
          call: calls the layer on symbolic inputs; by default with one tensor or the list of them.
          batch: the batch size, where the model must know it.
          subclass: True to call the layer from a subclassed model, where the Keras has them: a
            functional model takes tensors in the first argument only.
          count: training steps.
          same, again, less: which of the proofs are wanted.
          predict: whether predictions are the same: not if they are random, since without
            gradients random numbers are those of the plain model outside of `recording`.
          wrap: makes of the layer what is recomputed.
          plain: makes of the layer what `wrap` is compared with.
        """
        make_model = make_subclassed if subclass and not self.target.is_symbolic else make_functional

        def build(layer):
            return make_model(self.target, layer, x, call or call_on_list, batch)

        with self.target.recording():
            plain, plain_kept, plain_runs = self.train(make, plain, build, x, count)
        wrapped, wrapped_kept, runs = self.train(make, wrap, build, x, count)
        if same:
            assert_same_results(plain, wrapped, self.tolerance, predict)
            grads = [g for step in plain.steps for g in step.grads if g is not None]
            assert not grads or any(np.any(to_dense(g)) for g in grads), "all gradients are zero"
        if again:
            assert_ran_again(runs, plain_runs)
        if less and self.shows_what_is_kept:  # nothing of ours runs between `fit` and its gradient
            assert_keeps_less(plain_kept, wrapped_kept)
        return plain, wrapped

    def train(self, make, wrap, build, x, count):
        """Train for `count` steps: the result, what was kept in the last step, the runs of that step."""
        target, kept = self.target, []
        target.reset()
        layer = make()
        runs = mark(target, layer)
        model = build(wrap(layer))
        set_weights(model)

        def before_gradient():
            gc.collect()
            kept[:] = target.kept(settled(runs), trainer)

        if not target.is_symbolic:
            del settled(runs)[:]
        trainer = steps.trainer(target, self.mode, model, before_gradient=before_gradient)
        y = np.random.RandomState(5).randn(len(x[0]), 2).astype("float32")
        taken = trainer.train(x, y, count - 1)
        if not target.traces(self.mode):
            del settled(runs)[:]
        taken += trainer.train(x, y, 1)
        seen = type(runs)(settled(runs))
        kept = target.kept_in_the_end(seen, kept)
        if not target.is_symbolic:
            del runs[:]
        result = Result(taken, get_weights(model), trainer.predict(x))
        if not target.is_symbolic:
            assert_ran_once(settled(runs))
        return result, kept, seen


def settled(runs):
    """The runs, when all that are under way have been noted."""
    return runs.wait() if hasattr(runs, "wait") else runs


def to_dense(grad):
    return grad.values if isinstance(grad, steps.Sparse) else grad


def call_on_list(layer, *inputs):
    return layer(list(inputs) if len(inputs) > 1 else inputs[0])


def make_functional(target, layer, x, call, batch):
    """A model with `layer` between inputs like the arrays `x` and a head that reads all its outputs."""
    keras = target.keras
    inputs = [keras.layers.Input(batch_shape=(batch,) + part.shape[1:], dtype=part.dtype.name) for part in x]
    outputs = make_head(target)(flatten(target, call(layer, *inputs)))
    return keras.models.Model(inputs, outputs)


def make_subclassed(target, layer, x, call, batch):
    """The same as a subclassed model."""

    class Model(target.keras.Model):
        def __init__(self):
            super().__init__()
            self.block, self.head = layer, make_head(target)

        def call(self, inputs, training=None):
            inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            return self.head(flatten(target, call(self.block, *inputs)))

    model = Model()
    with target.recording():  # this call draws, if it draws, as those that follow
        model(list(map(target.tensor, x)) if len(x) > 1 else target.tensor(x[0]))
    return model


def flatten(target, outputs):
    flat = [t for t in target.flatten(outputs) if t is not None]
    return flat if len(flat) > 1 else flat[0]


def make_head(target):
    """A layer that maps whatever it is given, masks included, to two numbers per sample."""
    ops = target.ops

    class Head(target.keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(name="head", dtype="float32", **kwargs)
            self.supports_masking = True

        def build(self, input_shape):
            shapes = input_shape if isinstance(input_shape, list) else [input_shape]
            self.kernels = [
                self.add_weight(name=f"kernel{i}", shape=(size_of(shape), 2), initializer="glorot_uniform")
                for i, shape in enumerate(shapes)
            ]
            self.built = True

        def call(self, inputs, mask=None):
            inputs = inputs if isinstance(inputs, list) else [inputs]
            masks = mask if isinstance(mask, list) else [mask] * len(inputs)
            total = 0.0
            for tensor, kernel, masked in zip(inputs, self.kernels, masks):
                tensor = ops.cast(tensor, "float32")
                if masked is not None:
                    masked = ops.cast(masked, "float32")
                    for _ in range(len(tensor.shape) - len(masked.shape)):
                        masked = ops.expand_dims(masked, -1)
                    tensor = tensor * masked
                total = total + ops.matmul(ops.reshape(tensor, [-1, int(kernel.shape[0])]), kernel)
            return total

        def compute_mask(self, inputs, mask=None):
            return None

        def compute_output_shape(self, input_shape):
            first = input_shape[0] if isinstance(input_shape, list) else input_shape
            return (first[0], 2)

    return Head()


def size_of(shape):
    return int(np.prod([int(n) for n in tuple(shape)[1:]]))
