"""A callback that measures memory, made for whatever Keras the model belongs to."""

from keras_remat.families import family_of

LOG = "peak_memory_bytes"


def memory_callback(model):
    """Makes a callback for `fit` that logs the measured peak of memory in use, for each epoch.

    It adds `peak_memory_bytes` to the logs, which History, and a callback after it such as TensorBoard, show.
    That is what the framework's allocator has handed out at once, on the device where it is most: weights,
    the optimizer and everything else that is alive, validation included. On TensorFlow and PyTorch it is the
    peak of the epoch, on JAX that since the process began. It is measured, where a plan's is predicted.

    Args:
      model: the model that is trained.

    Returns:
      A callback of the model's own Keras.

    Raises:
      UnsupportedFamilyError: if `model` is no model of a supported Keras.
      RematError: if nothing can be measured here, as on a CPU with JAX or PyTorch. TensorFlow measures a CPU
        if TF_CPU_ALLOCATOR_USE_BFC=1 is in the environment when it is imported.

    Example:
        >>> from keras_remat import RematError, memory_callback
        >>> def callbacks(model):
        ...     try:
        ...         return [memory_callback(model)]
        ...     except RematError as error:  # the message says what to do
        ...         print(error)
        ...         return []
    """
    family = family_of(model)
    memory = family.memory()
    memory.check()

    class PeakMemory(family.callback_class):
        __doc__ = "Logs the measured peak of memory of each epoch."

        def on_epoch_begin(self, epoch, logs=None):
            memory.reset()

        def on_epoch_end(self, epoch, logs=None):
            if logs is not None:
                logs[LOG] = memory.peak()

    return PeakMemory()
