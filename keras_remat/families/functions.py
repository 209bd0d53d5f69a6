"""Plain functions of TensorFlow tensors: a family without layers."""

import contextlib

import tensorflow as tf

from keras_remat.families import base
from keras_remat.replay import autograph


class Functions(base.Family):
    """Functions have no layers, losses or call state; the variables that they read are watched."""

    def __init__(self):
        super().__init__(None)

    def is_inference(self):
        return False

    def sublayers(self, layer):
        return []

    def variables(self, layers):
        return []

    def call_state(self, layers):
        return None

    def entered(self, state):
        return contextlib.nullcontext()

    def convertible(self, function, layer):
        return function if tf.executing_eagerly() else autograph.converted(function)
