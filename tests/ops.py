"""Functions of TensorFlow by their names in `keras.ops`: one layer of a test runs on every framework."""


class TensorFlowOps:
    """What the layers of the tests need; names that both have come from TensorFlow as they are."""

    def __init__(self, tf):
        self._tf = tf
        self.sum, self.mean, self.max = tf.reduce_sum, tf.reduce_mean, tf.reduce_max
        self.softplus, self.relu, self.softmax = tf.nn.softplus, tf.nn.relu, tf.nn.softmax
        self.arctan = tf.atan

    def __getattr__(self, name):
        return getattr(self._tf, name)

    def take(self, tensor, indices, axis):
        return self._tf.gather(tensor, indices, axis=axis)

    def concatenate(self, tensors, axis=-1):
        return self._tf.concat(tensors, axis)

    def convert_to_tensor(self, value, dtype=None):
        return self._tf.convert_to_tensor(value, dtype=dtype)
