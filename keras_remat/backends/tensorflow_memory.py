"""How much memory TensorFlow's allocators have handed out: of GPUs, or of the CPU if its allocator counts."""

import tensorflow as tf

from keras_remat.errors import RematError


def check():
    """Raise if nothing can be measured."""
    if not hasattr(tf.config, "experimental") or not hasattr(tf.config.experimental, "reset_memory_stats"):
        raise RematError(
            "Peaks are measured by TensorFlow since 2.5. Received: TensorFlow "
            f"{tf.__version__}. Update it, or leave the callback out."
        )
    try:
        peak()
    except ValueError as error:
        raise RematError(
            "Peaks are measured on devices whose allocator counts. Received: "
            f"{', '.join(_devices())} ({error}). On a CPU, set TF_CPU_ALLOCATOR_USE_BFC=1 before "
            "TensorFlow is imported."
        ) from error


def check_steps():
    """Raise if steps cannot be measured."""
    check()
    if not tf.executing_eagerly():
        raise RematError(
            "Steps are measured in TensorFlow 2. Received: a program of version 1, which builds graphs. "
            "Take another strategy."
        )


def reset():
    """Begin to measure anew."""
    for device in _devices():
        tf.config.experimental.reset_memory_stats(device)


def peak():
    """Return the most bytes that were in use at once, since `reset`, on the device where that is most."""
    return max(tf.config.experimental.get_memory_info(device)["peak"] for device in _devices())


def _devices():
    gpus = tf.config.list_logical_devices("GPU")
    return [f"GPU:{i}" for i in range(len(gpus))] or ["CPU:0"]


def peak_of_step(model, specs):
    """Return the most bytes in use at once while a model trains a step, above what was in use before.

    Args:
      specs: list of (shape, dtype) of what it takes.
    """
    inputs = [tf.cast(tf.fill(shape, 0.5), dtype) for shape, dtype in specs]
    inputs = inputs if len(inputs) > 1 else inputs[0]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(inputs, training=True))
            loss = tf.add_n([tf.reduce_mean(tf.square(tf.cast(t, tf.float32))) for t in outputs])
        return loss, [g for g in tape.gradient(loss, model.trainable_variables) if g is not None]

    step()  # traces and compiles, which takes memory of its own
    before = sum(tf.config.experimental.get_memory_info(device)["current"] for device in _devices())
    reset()
    step()
    return peak() - before
