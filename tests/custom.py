"""Layers of a user's own, made from a function: what the tests need beyond the layers of Keras."""


def make_layer(keras, call, size=6, **weights):
    """A layer with a square `kernel` of `size`, further weights by name and shape, and that `call`."""

    class Custom(keras.layers.Layer):
        def build(self, input_shape):
            for name, shape in dict(weights, kernel=(size, size)).items():
                weight = self.add_weight(
                    name=name, shape=shape, dtype="float32", initializer="glorot_uniform"
                )
                setattr(self, name, weight)
            self.built = True

    Custom.call = call
    return Custom()
