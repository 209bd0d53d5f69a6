"""One training of the demo: plain or recomputed, watched step by step.

Sizes are bytes above what was in use before the step: weights, optimizer state and data are not
counted.
"""

import contextlib
import statistics
import time

import keras
from demo_tasks import TASKS
from heap import settle

WARM_UP = 3  # steps: tracing, and the optimizer's variables


def train(name, variant, steps, heap, report):
    """Train a task; call `report` with a dictionary for each step and one more with the result."""
    keras.utils.set_random_seed(0)  # of weights, and of the seeds that layers of dropout take
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Without this, TensorFlow's own convolution gradients differ from run to run.
        tf.config.experimental.enable_op_determinism()
    task = TASKS[name]()
    model = task.model()
    if variant == "recomputed":
        from keras_remat import recompute_all

        model = recompute_all(model)
    watch = Watch(steps, heap, report)
    model.fit(task.training(steps + 1), shuffle=False, callbacks=[watch], verbose=0)
    report(
        {
            "title": task.title,
            "losses": watch.losses,
            "held_out_loss": model.evaluate(task.held_out, verbose=0),
            "peak_bytes": int(statistics.median(watch.peaks[WARM_UP:])),
            "step_seconds": statistics.median(watch.seconds[WARM_UP:]),
            "points": watch.points,
        }
    )


class Watch(keras.callbacks.Callback):
    """Loss, time and peak of each of `steps` steps; the heap over the one after them."""

    def __init__(self, steps, heap, report):
        super().__init__()
        self.steps, self.heap, self.report = steps, heap, report
        self.losses, self.seconds, self.peaks = [], [], []
        self.trace = contextlib.ExitStack()

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()  # the loss of this batch, not the mean so far
        if keras.backend.backend() == "torch":
            self.model.zero_grad()  # the gradients of a step count to it, as on the other backends
        settle()
        if batch == self.steps:
            self.points = self.trace.enter_context(self.heap.trace())
        self.peak = self.heap.watch()
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        loss = float(logs["loss"])  # on JAX this waits for the step
        if batch == self.steps:
            self.trace.close()
            return
        self.seconds.append(time.perf_counter() - self.start)
        self.peaks.append(self.peak())
        self.losses.append(loss)
        self.report({"loss": loss})
