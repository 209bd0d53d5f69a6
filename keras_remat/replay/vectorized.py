"""Vectorized maps in an eager block: one element after the other.

TensorFlow traces such a map into a function of its own, whose random numbers nobody could give again. Some
image layers of Keras 2.11 are made of it.
"""

import tensorflow as tf
from tensorflow.python.ops.parallel_for import control_flow_ops

from keras_remat.replay.wrapping import is_eager_block, wrap


def _map(original, loop_fn, iters, *args, **kwargs):
    count = int(iters) if is_eager_block() else 0
    if not count:
        return original(loop_fn, iters, *args, **kwargs)
    results = [loop_fn(tf.constant(i)) for i in range(count)]
    return tf.nest.map_structure(lambda *elements: tf.stack(elements), *results)


wrap(control_flow_ops, "pfor", _map)
