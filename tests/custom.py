"""Layers of a user's own, made from a function: what the tests need beyond the layers of Keras."""


def make_layer(keras, call, size=6, **weights):
    """A layer with that `call`, a square `kernel` of `size`, if any, and further weights by shape."""
    shapes = dict(weights, kernel=(size, size)) if size else weights

    class Custom(keras.layers.Layer):
        def build(self, input_shape):
            for name, shape in shapes.items():
                weight = self.add_weight(
                    name=name, shape=shape, dtype="float32", initializer="glorot_uniform"
                )
                setattr(self, name, weight)
            self.built = True

    Custom.call = call
    return Custom()


def make_random_layer(target, call, seed=3, **options):
    """The same with a method `uniform(shape)`, which draws random numbers as layers of this Keras do."""
    layer = make_layer(target.keras, call, **options)
    if target.is_keras3:
        layer.generator = target.keras.random.SeedGenerator(seed)
        layer.uniform = lambda shape: target.keras.random.uniform(shape, seed=layer.generator)
    else:
        layer.uniform = lambda shape: target.tf.random.uniform(shape, seed=seed)
    return layer
