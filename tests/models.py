"""A zoo of models.

The layers that a kit gives out are marked (see `proofs`), so what is proved holds for each of them.
"""

from types import SimpleNamespace
from typing import Any, Callable, NamedTuple, Tuple

import proofs
import pytest
from blocks import make_head, settled
from proofs import (
    floats,
    ints,
    mark,
)


class Kit:
    """The layers and models of a Keras; if `marked`, each layer notes its runs."""

    def __init__(self, target, marked=False):
        self.target, self.keras, self.ops = target, target.keras, target.ops
        self.Model, self.Sequential = target.keras.models.Model, target.keras.models.Sequential
        self.is_marked = marked
        self._lists = []

    def __getattr__(self, name):
        made = self.target.layer(name)
        if made is None or not isinstance(made, type):
            return made
        return lambda *args, **kwargs: self.marked(made(*args, **kwargs))

    def marked(self, layer):
        """Let `layer` note its runs; return it."""
        if self.is_marked:
            self._lists.append(mark(self.target, layer))
        return layer

    def point(self):
        """A function that marks tensors inside a layer's call."""

        def call(tensor):
            return tensor

        here = SimpleNamespace(call=call)
        self.marked(here)
        return here.call

    def head(self):
        """A layer that maps all tensors that it is given to two numbers per sample."""
        return make_head(self.target)

    def take_runs(self):
        """List the runs that were noted, and forget them."""
        runs = self.runs()
        for noted in self._lists:
            del noted[:]
        return runs

    def runs(self):
        """List the runs that were noted."""
        return [run for noted in self._lists for run in settled(noted)]


class Case(NamedTuple):
    """A model of the zoo: `make(kit)`, inputs like those that it takes, and the layers it needs.

    `unread` and `exact` are arguments of `prove_model`.
    """

    make: Callable
    x: Tuple[Any, ...] = (floats(4, 6),)
    needs: Tuple[str, ...] = ()
    unread: int = 0
    exact: bool = False


def set_weights(model, seed=7):
    """Give a model the same weights whatever its initializers drew.

    By layer: the weights of a model of Keras 2.3.1 are in another order than `get_weights` is.
    """
    for i, layer in enumerate(model.layers):
        fill = set_weights if hasattr(layer, "layers") else proofs.set_weights
        fill(layer, seed=seed + i)


def make_chain(kit, count=6, rate=0.4):
    """A Sequential model of dense layers, with state and randomness between."""
    model = kit.Sequential(name="chain")
    model.add(kit.Dense(8, activation="tanh", input_shape=(6,), name="dense_0"))
    for i in range(1, count):
        model.add(kit.Dense(8, activation="tanh", name=f"dense_{i}"))
    model.add(kit.BatchNormalization(momentum=0.7, name="norm"))
    if rate:
        model.add(kit.Dropout(rate, seed=3, name="dropout"))
    model.add(kit.Dense(2, name="output"))
    return model


def make_skips(kit, rate=0.3):
    """Residual blocks; those with dropout are made of four layers."""
    x = inputs = kit.Input((6,))
    for i in range(3):
        y = kit.BatchNormalization(momentum=0.7, name=f"norm_{i}")(x)
        y = kit.Dense(6, activation="tanh", name=f"dense_{i}")(y)
        y = kit.Dropout(rate, seed=i + 1, name=f"dropout_{i}")(y) if rate else y
        x = kit.Add(name=f"add_{i}")([x, y])
    return kit.Model(inputs, kit.Dense(2, name="output")(x), name="skips")


def make_plain_skips(kit):
    """Residual blocks without dropout: where a layer is no block, nobody gives it the same mask."""
    return make_skips(kit, rate=0)


def make_concatenations(kit):
    """Each layer reads everything before it; the input itself is read at the end."""
    x = inputs = kit.Input((6,))
    for _ in range(3):
        x = kit.Concatenate()([x, kit.Dense(3, activation="tanh")(x)])
    return kit.Model(inputs, kit.Dense(2)(kit.Concatenate()([x, inputs])))


def make_convolutions(kit):
    """A small residual network of images."""
    inputs = kit.Input((6, 6, 3))
    x = kit.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    for _ in range(2):
        y = kit.BatchNormalization(momentum=0.7)(x)
        y = kit.Activation("relu")(y)
        y = kit.Conv2D(4, 3, padding="same", use_bias=False)(y)
        x = kit.Add()([x, y])
    x = kit.GlobalAveragePooling2D()(kit.MaxPooling2D()(x))
    return kit.Model(inputs, kit.Dense(2)(x))


def make_inputs(kit):
    """Two inputs; one is read by several layers."""
    a, b = kit.Input((6,), name="a"), kit.Input((4,), name="b")
    x = kit.Dense(5, activation="tanh")(a)
    y = kit.Dense(5, activation="tanh")(b)
    x = kit.Multiply()([x, y])
    x = kit.Concatenate()([x, b, kit.Dense(3)(b)])
    return kit.Model([a, b], kit.Dense(2)(kit.Dense(4, activation="tanh")(x)), name="inputs")


def make_outputs(kit):
    """A model of three outputs, one an input of another, inside a model that joins them."""
    inputs = kit.Input((6,))
    x = kit.Dense(5, activation="tanh")(inputs)
    y = kit.Dense(4, activation="tanh")(x)
    z = kit.Dense(3, activation="tanh")(y)
    inner = kit.Model(inputs, [x, z, kit.Dense(2)(y)], name="inner")
    outer = kit.Input((6,))
    return kit.Model(outer, kit.head()(inner(outer)))


def make_passed(kit):
    """A model that puts out one of its inputs as well, inside another one."""
    inputs = kit.Input((6,))
    x = kit.Dense(5, activation="tanh")(inputs)
    y = kit.Dense(5, activation="tanh")(kit.Dense(5, activation="tanh")(x))
    inner = kit.Model(inputs, [inputs, y, x], name="inner")
    outer = kit.Input((6,))
    return kit.Model(outer, kit.head()(inner(outer)))


def make_shared(kit):
    """One layer in two branches, one called several times in a row."""
    a, b = kit.Input((6,)), kit.Input((6,))
    first = kit.Dense(5, activation="tanh", name="first")
    x, y = first(a), first(b)
    again = kit.Dense(5, activation="tanh", name="again")
    x = again(again(again(kit.Subtract()([x, y]))))
    return kit.Model([a, b], kit.Dense(2)(kit.Add()([x, again(y)])))


def make_inner(kit, name, rate=0.3):
    """A model for other models."""
    inputs = kit.Input((5,))
    x = kit.Dense(7, activation="tanh", name=f"{name}_first")(inputs)
    x = kit.Dropout(rate, seed=4)(x) if rate else kit.Activation("tanh")(x)
    y = kit.Dense(5, activation="tanh", name=f"{name}_second")(x)
    return kit.Model(inputs, kit.Add()([inputs, y]), name=name)


def make_nested(kit, rate=0.3):
    """Models in a model, one of them called twice, and a Sequential."""
    inputs = kit.Input((6,))
    x = kit.Dense(5, activation="tanh", name="first")(inputs)
    shared, once = make_inner(kit, "shared", rate), make_inner(kit, "once", rate)
    x = shared(once(shared(x)))
    layers = [kit.Dense(4, input_shape=(5,), name="a"), kit.Dense(3, activation="tanh", name="b")]
    x = kit.Sequential(layers, name="inner_chain")(x)
    return kit.Model(inputs, kit.Dense(2, name="last")(x))


def in_a_row(keras, shape, layers):
    """A model of layers one after the other: `Sequential` of Keras 2.3.1 takes no Input."""
    x = inputs = keras.layers.Input(shape)
    for layer in layers:
        x = layer(x)
    return keras.models.Model(inputs, x)


def make_plain_nest(kit):
    """The same without dropout."""
    return make_nested(kit, rate=0)


def make_masked(kit):
    """Masks flow from an embedding through a dropout to recurrent layers."""
    inputs = kit.Input((5,), dtype="int32")
    x = kit.Embedding(10, 6, mask_zero=True)(inputs)
    x = kit.Dropout(0.3, seed=2)(x)
    x = kit.LSTM(4, return_sequences=True)(x)
    x = kit.Activation("tanh")(x)
    return kit.Model(inputs, kit.Dense(2)(kit.SimpleRNN(3)(x)))


def make_lambdas(kit):
    """Functions as layers."""
    inputs = kit.Input((6,))
    x = kit.Lambda(lambda t: t * 2.0)(kit.Dense(5, activation="tanh")(inputs))
    x = kit.Lambda(lambda t: t[0] + t[1])([x, kit.Dense(5)(x)])
    return kit.Model(inputs, kit.Dense(2)(x))


def make_operators(kit):
    """Operators of symbolic tensors; these make layers that nobody can mark."""
    inputs = kit.Input((6,))
    x = kit.Dense(5, activation="tanh")(inputs)
    y = 2.0 * x + kit.Dense(5)(x)
    y = kit.ops.concatenate([y, -x], axis=-1)[:, 2:]
    return kit.Model(inputs, kit.Dense(2)(y * y))


def make_penalties(kit):
    """Losses of weights and of outputs."""
    l2 = kit.keras.regularizers.l2(0.1)
    x = inputs = kit.Input((6,))
    for _ in range(3):
        x = kit.Dense(5, activation="tanh", kernel_regularizer=l2, activity_regularizer=l2)(x)
    x = kit.ActivityRegularization(l2=0.05)(x)
    return kit.Model(inputs, kit.Dense(2)(x))


def make_attention(kit):
    """Tensors and flags as keywords."""
    inputs, mask = kit.Input((5, 6)), kit.Input((5, 5))
    x = kit.Dense(6)(inputs)
    for _ in range(2):
        y = kit.MultiHeadAttention(2, 3, dropout=0.0)(x, x, attention_mask=mask)
        x = kit.LayerNormalization()(kit.Add()([x, y]))
    return kit.Model([inputs, mask], kit.Dense(2)(kit.GlobalAveragePooling1D()(x)))


def make_states(kit):
    """A layer with several outputs, one of them not read, and one that takes them as keywords."""
    inputs = kit.Input((5, 3))
    x, state = kit.SimpleRNN(4, return_sequences=True, return_state=True)(inputs)
    x, unread = kit.SimpleRNN(4, return_sequences=True, return_state=True)(x, initial_state=state)
    x = kit.Concatenate()([kit.GlobalAveragePooling1D()(x), state])
    return kit.Model(inputs, kit.Dense(2)(x))


ZOO = {
    "chain": Case(make_chain, exact=True),
    "skips": Case(make_skips),
    "concatenations": Case(make_concatenations),
    "convolutions": Case(make_convolutions, (floats(4, 6, 6, 3),)),
    "inputs": Case(make_inputs, (floats(4, 6), floats(4, 4, seed=1))),
    "outputs": Case(make_outputs),
    "passed": Case(make_passed),
    "shared": Case(make_shared, (floats(4, 6), floats(4, 6, seed=1))),
    "nested": Case(make_nested),
    "masked": Case(make_masked, (ints(4, 5, high=6),)),
    "lambdas": Case(make_lambdas),
    "operators": Case(make_operators),
    "penalties": Case(make_penalties),
    "attention": Case(
        make_attention,
        (floats(4, 5, 6), (floats(4, 5, 5, seed=1) > 0).astype("float32")),
        ("MultiHeadAttention",),
    ),
    "states": Case(make_states, (floats(4, 5, 3),), unread=1),
}


def each(*everywhere):
    """Parametrises a test with `case`: these models of the zoo, and where there is time for it all others."""
    params = []
    for name, case in ZOO.items():
        needs = case.needs if name in everywhere else (*case.needs, "all models")
        params.append(pytest.param(case, id=name, marks=pytest.mark.needs(*needs)))
    return pytest.mark.parametrize("case", params)
