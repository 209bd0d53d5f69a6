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
