"""Plain functions of tensors: a family without layers."""

import contextlib

from keras_remat.families import base


class Functions(base.Family):
    """Functions have no layers, losses or call state; what they read beside their arguments is watched."""

    def __init__(self, backend_name):
        self.backend_name = backend_name
        super().__init__(None)

    def is_inference(self):
        return False

    def sublayers(self, layer):
        return []

    def variables(self, layers):
        return []

    def call_state(self, layers):
        return None

    def call_key(self, state):
        """Return nothing: a call depends on its arguments only."""

    def entered(self, state):
        return contextlib.nullcontext()

    def convertible(self, function, layer):
        return self.backend.convertible(function)  # whatever object it is a method of
