"""One training of the demo: plain or recomputed, watched step by step.

Sizes are bytes above what was in use before the step: weights, optimizer state and data are not
counted.
"""

import statistics
import time

import tensorflow as tf
import tf_keras as keras
from demo_tasks import TASKS

WARM_UP = 3  # steps: tracing, and the optimizer's variables


def train(name, variant, steps, counter):
    """Train a task; yield a dictionary for each step and one more with the result."""
    keras.utils.set_random_seed(0)
    # Without this, TensorFlow's own convolution gradients differ from run to run.
    tf.config.experimental.enable_op_determinism()
    task = TASKS[name]()
    model = task.model()
    if variant == "recomputed":
        from keras_remat import recompute_all

        model = recompute_all(model)

    losses, peaks, seconds = [], [], []
    batches = task.batches()
    for _ in range(steps):
        inputs, targets = next(batches)
        with counter.watch() as peak:
            start = time.perf_counter()
            losses.append(float(model.train_on_batch(inputs, targets)))
            seconds.append(time.perf_counter() - start)
            peaks.append(peak())
        yield {"loss": losses[-1]}
    with counter.trace() as points:
        model.train_on_batch(*next(batches))
    yield {
        "title": task.title,
        "losses": losses,
        "held_out_loss": float(model.evaluate(*task.held_out, verbose=0)),
        "peak_bytes": int(statistics.median(peaks[WARM_UP:])),
        "step_seconds": statistics.median(seconds[WARM_UP:]),
        "points": points,
    }
