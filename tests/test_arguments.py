"""What a layer may be called with and give back: tensors anywhere, None, flags, nested structures."""

import collections

import pytest
from custom import make_layer
from proofs import floats, ints

from keras_remat import Recompute, RematError

pytestmark = pytest.mark.modes("loop", "function", "graph")

A, B = floats(4, 6), floats(4, 6, seed=1)
Pair = collections.namedtuple("Pair", "left right")


def test_positional_tensors(prove, keras, ops):
    def call(self, inputs, other):
        return ops.matmul(inputs, self.kernel) * ops.tanh(other)

    prove(lambda: make_layer(keras, call), A, B, call=lambda f, a, b: f(a, b), subclass=True)


def test_keyword_tensors(prove, keras, ops):
    def call(self, inputs, scale=None, shift=None):
        return ops.matmul(inputs, self.kernel) * ops.tanh(scale) + shift

    def use(layer, a, b):
        return layer(a, shift=b, scale=a)

    prove(lambda: make_layer(keras, call), A, B, call=use, subclass=True)


def test_none_and_flags(prove, keras, ops):
    def call(self, inputs, other=1, activation="none", twice=False, shape=(1, 2)):
        assert other is None and shape == (3, [4])
        outputs = getattr(ops, activation)(ops.matmul(inputs, self.kernel))
        return outputs * 2.0 if twice else outputs

    def use(layer, a):
        return layer(a, other=None, activation="tanh", twice=True, shape=(3, [4]))

    prove(lambda: make_layer(keras, call), A, call=use, subclass=True)


def test_bool_and_int_tensors(prove, keras, ops):
    def call(self, inputs, keep=None, order=None):
        outputs = ops.matmul(inputs, self.kernel)
        return ops.take(ops.where(keep, outputs, ops.zeros_like(outputs)), order, axis=0)

    def use(layer, a, keep, order):
        return layer(a, keep=keep, order=order)

    keep = ints(4, 6, high=2) > 0
    order = ints(4, high=4)
    prove(lambda: make_layer(keras, call), A, keep, order, call=use, subclass=True)


def test_nested_arguments(prove, keras, ops):
    def call(self, inputs, more=None):
        outputs = ops.matmul(inputs, self.kernel) * more["pair"][0]
        return outputs + more["scale"] * ops.tanh(more["shifts"][0]) - more["shifts"][1]

    def use(layer, a, b):
        return layer(a, more={"scale": b, "shifts": [a, b], "pair": (b, a)})

    prove(lambda: make_layer(keras, call), A, B, call=use, subclass=True)


def test_none_in_a_nested_argument(prove, keras, ops):
    def call(self, inputs, more=None):
        assert more["pair"][1] is None
        return ops.matmul(inputs, self.kernel) * more["pair"][0] + ops.tanh(more["shifts"][0])

    def use(layer, a, b):
        return layer(a, more={"shifts": [a, b], "pair": (b, None)})

    prove(lambda: make_layer(keras, call), A, B, call=use, subclass=True)


def test_tensors_beside_numbers(prove, keras, ops):
    def call(self, inputs, shifts=None):
        return ops.matmul(inputs, self.kernel) + ops.tanh(shifts[0]) * shifts[1]

    def use(layer, a, b):
        return layer(a, shifts=[b, 2.0])

    prove(lambda: make_layer(keras, call), A, B, call=use, subclass=True)


@pytest.mark.needs("keras 3")
@pytest.mark.modes("loop", "function", "fit", "fit-eager")
def test_dicts(prove, keras, ops):
    """As inputs and outputs of a layer, also of a functional model."""

    def call(self, inputs):
        left = ops.matmul(inputs["left"], self.kernel) * inputs["right"]
        return {"product": left, "sum": left + inputs["right"]}

    def use(layer, a, b):
        outputs = layer({"right": b, "left": a})
        assert sorted(outputs) == ["product", "sum"]
        return [outputs["sum"], outputs["product"]]

    prove(lambda: make_layer(keras, call), A, B, call=use)


@pytest.mark.needs("keras 3")
@pytest.mark.modes("loop", "function", "fit")
def test_functions_of_keras(prove, keras, ops):
    """A model made of `keras.ops`, which has a layer for each function."""

    def make():
        a, b = keras.Input((6,)), keras.Input((6,))
        x = ops.tanh(ops.matmul(a, ops.transpose(b)))
        return keras.Model([a, b], ops.matmul(x, b) + keras.layers.Dense(6)(a * 2.0))

    prove(make, A, B)


def test_nested_inputs(prove, keras, ops):
    def call(self, inputs):
        return ops.matmul(inputs[0], self.kernel) * inputs[1][0] + inputs[1][1]

    prove(lambda: make_layer(keras, call), A, B, call=lambda f, a, b: f([a, (b, a)]), subclass=True)


def test_named_tuples(prove, keras, ops):
    def call(self, inputs, pair=None):
        left = ops.matmul(inputs, self.kernel) - pair.left
        return Pair(left=left, right=pair.right * left)

    def use(layer, a, b):
        outputs = layer(a, pair=Pair(a, b))
        assert isinstance(outputs, Pair)
        return outputs.left - outputs.right

    prove(lambda: make_layer(keras, call), A, B, call=use, subclass=True)


@pytest.mark.modes("loop", "function")
def test_nested_outputs(prove, keras, ops):
    def call(self, inputs):
        outputs = ops.matmul(inputs, self.kernel)
        return {"a": outputs, "rest": [ops.argmax(outputs, -1), None, (outputs * 2.0, "text")]}

    def use(layer, a):
        outputs = layer(a)
        assert outputs["rest"][1] is None and outputs["rest"][2][1] == "text"
        return outputs["a"], outputs["rest"][0], outputs["rest"][2][0]

    prove(lambda: make_layer(keras, call), A, call=use, subclass=True)


def test_several_outputs_one_unused(prove, keras, ops):
    def call(self, inputs):
        outputs = ops.matmul(inputs, self.kernel)
        return [outputs, outputs * 3.0, ops.cast(outputs > 0.0, "int32")]

    def use(layer, a):
        first, _, third = layer(a)
        return [first, third]

    def make():
        layer = make_layer(keras, call)
        layer.compute_output_shape = lambda shape: [shape, shape, shape]
        return layer

    prove(make, A, call=use, less=False, subclass=True)


def test_same_tensor_several_times(prove, keras, ops):
    def call(self, inputs):
        a, b, c = inputs
        return ops.matmul(a, self.kernel) + b * c

    def make():
        layer = make_layer(keras, call)
        layer.compute_output_shape = lambda shapes: shapes[0]
        return layer

    prove(make, A, call=lambda layer, a: layer([a, a, a]))


def test_input_is_an_output(prove, keras, ops):
    def call(self, inputs):
        return [inputs, ops.matmul(inputs, self.kernel)]

    def make():
        layer = make_layer(keras, call)
        layer.compute_output_shape = lambda shape: [shape, shape]
        return layer

    prove(make, A)


def test_no_floating_input(prove, keras, ops):
    def call(self, inputs):
        return ops.take(self.kernel, inputs, axis=0)

    def make():
        layer = make_layer(keras, call)
        layer.compute_output_shape = lambda shape: tuple(shape) + (6,)
        return layer

    prove(make, ints(4, 5, high=6))


def test_no_weight(prove, keras, ops):
    prove(lambda: make_layer(keras, lambda self, x: ops.tanh(x * x), size=None), A)


def test_tensors_from_outside(prove, keras, ops):
    def make():
        # A closure is no argument: the block finds the tensor, and its gradient, by itself.
        scale = keras.layers.Dense(1)
        scale.build((None, 6))

        def call(self, inputs):
            return ops.matmul(inputs, self.kernel) * scale(ops.stop_gradient(inputs))

        layer = make_layer(keras, call)
        layer.scale = scale
        return layer

    prove(make, A)


def test_unused_weight_has_no_gradient(prove, keras, ops):
    def call(self, inputs):
        return ops.matmul(inputs, self.kernel)

    plain, wrapped = prove(lambda: make_layer(keras, call, unused=(3,)), A)
    for model in (plain, wrapped):  # which gives zeros on JAX, the same as the plain model
        assert [grad is None or not grad.any() for grad in model.steps[0].grads].count(True) == 1


def test_frozen_weights(prove, L):
    def make():
        layer = L.Dense(6, activation="tanh")
        layer.trainable = False
        return layer

    prove(make, A)


def test_mask_argument(prove, keras, ops):
    def call(self, inputs, mask=None):
        assert mask is not None
        return ops.matmul(inputs, self.kernel) * ops.cast(mask, "float32")[:, :, None]

    def use(layer, x):
        return layer(keras.layers.Masking()(x))

    def make():
        layer = make_layer(keras, call)
        layer.supports_masking = True
        return layer

    x = floats(2, 4, 6)
    x[:, 2:] = 0
    prove(make, x, call=use)


class Out:
    """What no framework looks into."""

    def __init__(self, y):
        self.y = y


@pytest.mark.modes("loop")
def test_tensors_in_an_object(mode, target, prove, keras, L):
    def in_an_object(dense, wrap=lambda layer: layer):
        inner = make_layer(keras, lambda self, x: Out(self.dense(x)), size=None)
        outer = make_layer(keras, lambda self, x: self.inner(x).y, size=None)
        inner.dense = dense
        outer.inner = wrap(inner)
        return outer

    def run():
        prove(
            lambda: L.Dense(6, activation="tanh"),
            A,
            plain=in_an_object,
            wrap=lambda dense: in_an_object(dense, Recompute),
            subclass=True,
        )

    if target.framework_name == "torch":  # whose autograd finds them
        run()
        return
    with pytest.raises(RematError, match="returns a tensor in a Out"):
        run()
