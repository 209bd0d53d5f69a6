"""Costs: what calls keep adds up to what models keep, and looking for it changes nothing."""

import random

import numpy as np
import plan_models
import pytest
from models import ZOO, Kit, each, make_chain

from keras_remat import plan
from keras_remat.families import family_of
from keras_remat.planning.costs import Tensors, trace_calls
from keras_remat.plans import Sizes

BATCH = 4


def costs_of(model):
    family = family_of(model)
    tensors = Tensors(family, family.input_specs(model, Sizes(BATCH).of))
    return trace_calls(family, family.calls(model), family.output_keys(model), tensors)


def kept(calls):
    """Bytes that plain training keeps, beside the model's inputs."""
    needed = set().union(*(cost.needs for cost in calls.costs))
    return sum(cost.inner for cost in calls.costs) + sum(calls.sizes.get(key, 0) for key in needed)


def whole(keras, model):
    """A model of one call, that of `model`."""
    inputs = [keras.Input(tuple(t.shape)[1:], dtype=t.dtype) for t in model.inputs]
    return keras.Model(inputs, model(inputs if len(inputs) > 1 else inputs[0]))


@each(*ZOO)
def test_calls_add_up_to_the_model(case, target, keras):
    model = case.make(Kit(target))
    assert 0 < kept(costs_of(model)) == kept(costs_of(whole(keras, model)))


@pytest.mark.needs("keras 3")
@pytest.mark.parametrize(
    "name",
    [
        "ResNet50",
        "VGG16",
        *(
            pytest.param(name, marks=pytest.mark.needs("all models"))
            for name in ("MobileNetV3Small", "DenseNet121", "EfficientNetB0")
        ),
    ],
)
def test_calls_of_models_of_others(name, keras):
    model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3))
    assert 0 < kept(costs_of(model)) == kept(costs_of(whole(keras, model)))


#: Those of the benchmark of plans, as small as they get.
ARCHITECTURES = {
    "mlp": lambda: plan_models.mlp(2, 8, 4),
    "bert": lambda: plan_models.bert(2, 8, 2, 16, 2, 50),
    "gpt": lambda: plan_models.gpt(2, 8, 2, 16, 2, 50),
    "unet": lambda: plan_models.unet(1, 32),
    "lstm": lambda: plan_models.lstm(2, 6, 2, 8, 50),
    "two inputs": lambda: plan_models.two_inputs(2, 8, 16),
}


@pytest.mark.needs("keras 3")
@pytest.mark.parametrize("make", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_calls_of_architectures(make, keras):
    model, _ = make()
    assert 0 < kept(costs_of(model)) == kept(costs_of(whole(keras, model)))


def test_what_a_layer_keeps(keras, L):
    """A relu's gradient reads its output, that of a product its factors."""
    model = keras.Sequential(
        [L.Dense(5, input_shape=(6,)), L.Activation("relu"), L.Dense(3), L.Reshape((3, 1))]
    )
    first, relu, last, view = costs_of(model).costs
    sizes = costs_of(model).sizes
    assert [sizes[key] for cost in (first, relu, last) for key in cost.outputs] == [
        4 * 5 * 4,
        4 * 5 * 4,
        4 * 3 * 4,
    ]
    assert relu.outputs[0] in last.needs
    assert not view.outputs and view.inner == 0
    assert all(cost.work > 0 for cost in (first, relu, last))


def make_directions(keras):
    """Loops in both directions and in each step a model, with dropout wherever it may be."""
    L = keras.layers
    inputs = keras.Input((5, 3))
    step = keras.Sequential([L.Dense(4, input_shape=(8,)), L.BatchNormalization(), L.Dropout(0.3)])
    x = L.Bidirectional(L.LSTM(4, return_sequences=True, dropout=0.2, recurrent_dropout=0.3))(inputs)
    x = L.TimeDistributed(L.Dense(8, activation="tanh"))(x)
    x = L.GRU(4, dropout=0.1)(L.TimeDistributed(step)(x))
    return keras.Model(inputs, L.Dense(2)(x))


def make_frames(keras):
    """Convolutions in a loop."""
    L = keras.layers
    inputs = keras.Input((3, 8, 8, 2))
    x = L.ConvLSTM2D(3, 3, padding="same")(inputs)
    return keras.Model(inputs, L.Dense(2)(L.Flatten()(L.PReLU()(L.SeparableConv2D(4, 3)(x)))))


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("make", [make_directions, make_frames], ids=["directions", "frames"])
def test_loops_add_up_to_the_model(make, keras):
    model = make(keras)
    assert 0 < kept(costs_of(model)) == kept(costs_of(whole(keras, model)))


@pytest.mark.needs("tensorflow")
def test_what_a_loop_keeps(keras, L):
    """Of each step of an LSTM at least its four gates and two states, and what it reads."""
    inputs = keras.Input((5, 3))
    model = keras.Model(inputs, L.Dense(2)(L.LSTM(4)(L.Dense(3)(inputs))))
    assert costs_of(model).costs[1].inner >= 5 * BATCH * (6 * 4 + 3) * 4


@pytest.mark.needs("tensorflow")
def test_steps_of_a_loop_run_ahead(keras, L):
    """Gradients of weights wait to be added up, one of each step; what is kept for a step is much smaller."""
    inputs = keras.Input((12, 64))
    model = keras.Model(inputs, L.Dense(2)(L.LSTM(64, return_sequences=True)(L.Dense(64)(inputs))))
    one = 4 * (2 * 64 * 4 * 64)
    assert costs_of(model).costs[1].transient >= 11 * one


@pytest.mark.needs("version 1 variables")
def test_variables_of_version_1(keras, tf):
    """What comes before a layer that is trained has a gradient, of whatever kind its variables are."""

    class Dense(keras.layers.Layer):
        def build(self, input_shape):
            shape = (int(input_shape[-1]), 5)
            self.kernel = tf.compat.v1.Variable(np.ones(shape, "float32"), use_resource=False)
            if not self._trainable_weights:
                self._trainable_weights.append(self.kernel)
            self.built = True

        def call(self, inputs):
            return tf.tanh(tf.matmul(inputs, self.kernel))

        def compute_output_shape(self, input_shape):
            return (input_shape[0], 5)

    inputs = keras.Input((6,))
    calls = costs_of(keras.Model(inputs, Dense()(Dense()(inputs))))
    assert kept(calls) == 2 * BATCH * 5 * 4


def test_nothing_stays_behind(target):
    """Neither in layers nor in the graph where a Keras makes its models, nor in what draws numbers."""
    models = [ZOO[name].make(Kit(target)) for name in ("chain", "masked", "nested", "penalties")]
    before = state_of(target, models)
    for model in models:
        plan(model, batch_size=BATCH)
    after = state_of(target, models)
    assert [key for key in before if before[key] != after.get(key)] == []
    assert after.keys() == before.keys()


IDLE = ("_called", "_output_shape_cache")  # that a layer ran once, and shapes by shapes: true afterwards too


def state_of(target, models):
    found = {"random": str(random.getstate()), "numpy": str(np.random.get_state())}
    if target.is_symbolic:
        found["graph"] = target.symbolic(target.tf.compat.v1.get_default_graph)().version
    for model in models:
        for layer in family_of(model).sublayers(model):
            held = {name: x for name, x in vars(layer).items() if x is not None and name not in IDLE}
            found.update({(model.name, layer.name, name): ids(x) for name, x in held.items()})
    return found


def ids(value):
    if isinstance(value, dict):
        return {key: ids(x) for key, x in value.items()}
    return [ids(x) for x in value] if isinstance(value, (list, tuple)) else id(value)


def test_dropout_is_traced_as_in_training(target, L, keras):
    model = keras.Sequential([L.Dense(5, input_shape=(6,)), L.Dropout(0.5), L.Dense(3)])
    _, dropout, _ = costs_of(model).costs
    assert dropout.inner > 0


def test_costs_grow_with_the_batch(target):
    sizes = [plan(make_chain(Kit(target)), batch_size=n).baseline_bytes for n in (10, 20, 40)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0]) > 0


def test_a_call_that_cannot_be_traced(target):
    model = make_chain(Kit(target))

    def call(*args, **kwargs):
        raise KeyError("data")

    model.layers[1].call = call
    found = plan(model)
    assert "estimates by the sizes of outputs, because the call of 'dense_1'" in found.notes[0]
    assert "KeyError" in found.notes[0] and found.baseline_bytes > 0
