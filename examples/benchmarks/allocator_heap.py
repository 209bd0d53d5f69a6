"""The measurements of `heap.Heap` by TensorFlow's own allocator, where malloc cannot be counted.

Sizes are rounded up by the allocator and only tensors are counted: good to about 5 %. Needs
TensorFlow 2.6 or newer, on which ``TF_CPU_ALLOCATOR_USE_BFC=1`` was set before its import.
"""

import contextlib
import threading
import time

import tensorflow as tf

DEVICE = "CPU:0"


class AllocatorHeap:
    """TensorFlow's statistics of its CPU memory. All sizes are in bytes."""

    def watch(self):
        """Return a function that tells the peak since now, above what is in use now."""
        start = self._ask("current")
        tf.config.experimental.reset_memory_stats(DEVICE)
        return lambda: self._ask("peak") - start

    @contextlib.contextmanager
    def trace(self, period=0.002):
        """Yield a list that receives (seconds, bytes) every `period` seconds, from the start."""
        points, done = [], threading.Event()
        start, zero = self._ask("current"), time.monotonic()

        def sample():
            while not done.wait(period):
                points.append((time.monotonic() - zero, self._ask("current") - start))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield points
        finally:
            done.set()
            thread.join()

    def _ask(self, what):
        return tf.config.experimental.get_memory_info(DEVICE)[what]
