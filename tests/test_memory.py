"""What is kept for the gradient: of a chain of layers, exactly the inputs of the segments.

Counted tensor by tensor, so nothing depends on a machine. That the executors of graphs do not undo it is
read from the graphs and programs that they run.
"""

import gc
import re
import weakref

import on_tensorflow
import pytest
import steps
from model_proofs import COPY
from proofs import floats, set_weights

from keras_remat import Recompute, RecomputeSequential, recompute_all

X = floats(4, 8)
COUNT = 6


def kept(target, mode, wrap, activation="tanh"):
    """The positions of the layers of a chain whose inputs are kept, and "other" for what else is."""
    target.reset()
    keras, watch = target.keras, (target.framework or on_tensorflow).Watch()
    layers = [watch(keras.layers.Dense(8, activation=activation)) for _ in range(COUNT)]
    first, last = keras.layers.Activation("linear", input_shape=(8,)), watch(keras.layers.Dense(2))
    model = keras.Sequential([first] + wrap(layers) + [last])
    return watch.kept(target, mode, model, X)


MODES = pytest.mark.modes("loop", "function", "graph")


@MODES
def test_plain_model_keeps_all(mode, target):
    assert set(kept(target, mode, lambda layers: layers)) >= set(range(COUNT + 1))


@MODES
@pytest.mark.parametrize("segments", [1, 2, 3, 6])
def test_segments_keep_their_inputs(segments, mode, target):
    found = kept(target, mode, lambda layers: [RecomputeSequential(layers, segments=segments)])
    assert found == [*range(0, COUNT, COUNT // segments), COUNT]


@MODES
def test_each_layer_keeps_its_input(mode, target):
    found = kept(target, mode, lambda layers: list(map(Recompute, layers)))
    assert found == list(range(COUNT + 1))


@MODES
def test_nested_blocks_keep_the_outer_input(mode, target):
    def wrap(layers):
        return [Recompute(RecomputeSequential(layers, segments=3))]

    assert kept(target, mode, wrap) == [0, COUNT]


@pytest.mark.modes("function", "graph")
def test_gradients_written_by_hand_keep_nothing(mode, target, tf):
    """`tf.custom_gradient` makes functions that hold what the first run made."""
    made = []

    @tf.custom_gradient
    def activation(tensor):
        made.append(tf.sigmoid(tensor))
        inner = made[-1]
        return tensor * inner, lambda grad: grad * (inner + tensor * inner * (1.0 - inner))

    kept(target, mode, lambda layers: [RecomputeSequential(layers, segments=2)], activation)
    read = [op.name for t in made if t.graph is made[-1].graph for op in t.consumers()]
    assert len(read) >= COUNT and not any(map(COPY.match, read))


def make_chain(target, wrapped):
    keras, L = target.keras, target.keras.layers
    target.reset()
    chain = keras.Sequential([L.Dense(8, activation="tanh") for _ in range(3)])
    first = L.Activation("linear", input_shape=(8,))
    model = keras.Sequential([first, Recompute(chain) if wrapped else chain, L.Dense(2)])
    set_weights(model)
    return model


@pytest.mark.modes("function", "graph")
@pytest.mark.parametrize("wrapped", [False, True])
def test_grappler_merges_nothing(wrapped, mode, target, tf):
    model = make_chain(target, wrapped)
    trainer = steps.trainer(target, mode, model)
    counts = [count_executed(target, graph, "Tanh") for graph in optimized(target, trainer)]
    assert max(counts) == (6 if wrapped else 3)


def optimized(target, trainer):
    """The graphs that are run, after Grappler."""
    if not target.tf.executing_eagerly():
        return session_graphs(target, trainer)
    from tensorflow.python.eager import context

    context.enable_run_metadata()
    try:
        trainer.train([X], floats(4, 2), 1)
        graphs = context.export_run_metadata().function_graphs
        return [graph.post_optimization_graph for graph in graphs]
    finally:
        context.disable_run_metadata()


def session_graphs(target, trainer):
    tf = target.tf
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    session = target.tf.compat.v1.keras.backend.get_session()
    original = session._make_callable_from_options

    def make_callable(callable_options):
        callable_options.run_options.CopyFrom(options)
        made = original(callable_options)
        return lambda *args, **kwargs: made(*args, run_metadata=metadata)

    session._make_callable_from_options = make_callable
    try:
        trainer.train([X], floats(4, 2), 1)
    finally:
        del session._make_callable_from_options
    return metadata.partition_graphs


def count_executed(target, graph, kind):
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    return sum(node.op == kind or kind in node.attr["fused_ops"].list.s for node in nodes)


@pytest.mark.modes("xla")
def test_xla_merges_nothing(mode, target, tf):
    counts, products = [], []
    for wrapped in (False, True):
        trainer = steps.trainer(target, mode, make_chain(target, wrapped))
        tensors = [tf.constant(X)], tf.constant(floats(4, 2))
        text = trainer.step.experimental_get_compiler_ir(*tensors)(stage="optimized_hlo")
        counts.append(text.count(" tanh("))
        products.append(text.count(" dot("))
    assert counts[1] >= 2 * counts[0] > 0
    assert products[1] == products[0] + 3  # of the three layers of the block


def make_feed_forward(keras, is_residual):
    """Two Dense layers; or these, of the normalized input, added to it."""
    L = keras.layers
    block = keras.Sequential([L.Dense(256, "gelu"), L.Dense(64)])
    if not is_residual:
        return block
    inputs = keras.Input((64,))
    return keras.Model(inputs, inputs + block(L.LayerNormalization()(inputs)))


@pytest.mark.needs("jax")
@pytest.mark.modes("function")
@pytest.mark.parametrize("is_residual", [False, True])
def test_compiled_step_needs_less(is_residual, mode, target, keras):
    """What XLA sets aside for a step of training, weights and gradients included."""
    sizes, choices = [], []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        blocks = [make_feed_forward(keras, is_residual) for _ in range(8)]
        model = keras.Sequential([keras.Input((64,)), *map(wrap, blocks)])
        trainer, data = steps.trainer(target, mode, model), ([floats(512, 64)], floats(512, 64))
        sizes.append(trainer.temporary_bytes(*data))
        choices.append(len(re.findall(r"compare +EQ", trainer.lowered(*data).as_text())))
    assert 2 * sizes[1] < sizes[0]
    assert choices == [0, 8]  # not every XLA needs them: each second run waits by data, too


def temporary_bytes(target, mode, make, wrap, x):
    """What XLA sets aside for a step of a chain of eight blocks."""
    target.reset()
    layers = [target.keras.Input(x.shape[1:]), *(wrap(make()) for _ in range(8))]
    return steps.trainer(target, mode, target.keras.Sequential(layers)).temporary_bytes([x], x)


@pytest.mark.needs("jax")
@pytest.mark.modes("function")
def test_compiled_blocks_draw_their_numbers_late(mode, target, keras, L):
    """XLA would draw all random numbers of a step before it computes anything."""

    def make():
        return keras.Sequential([L.Dense(64, "tanh"), L.Dropout(0.1)])

    x = floats(1024, 64)
    plain, ours = (temporary_bytes(target, mode, make, wrap, x) for wrap in (lambda layer: layer, Recompute))
    assert 2 * ours < plain


@pytest.mark.needs("jax")
@pytest.mark.modes("function")
def test_compiled_blocks_copy_no_weights(mode, target, keras, L):
    """Beside its gradient, each weight has room for one transposed copy, as convolutions need."""

    def make():
        return L.Conv2D(64, 3, padding="same", activation="tanh")

    weight = 4 * 64 * 64 * 9
    assert temporary_bytes(target, mode, make, Recompute, floats(1, 8, 8, 64)) < 2.5 * weight


@pytest.mark.needs("jax")
@pytest.mark.modes("loop")
@pytest.mark.parametrize("differentiated", [True, False])
def test_traces_keep_no_arrays(differentiated, mode, target, keras):
    model = make_chain(target, True)
    for _ in range(2):  # the second call finds the trace of the first
        inner = target.tensor(X) * 2.0
        held = weakref.ref(inner)
        if differentiated:
            outputs, pull = target.framework.jax.vjp(model, inner)
            del inner
            assert held() is not None
            pull(outputs)
            del pull
        else:
            outputs = model(inner)
            del inner
        gc.collect()
        assert held() is None and outputs.shape == (4, 2)


@pytest.mark.needs("torch")
@pytest.mark.modes("loop")
def test_nothing_is_kept_after_backward(mode, target, keras):
    model, x = make_chain(target, True), target.tensor(X).requires_grad_()
    inner = x * 2.0
    held = weakref.ref(inner)
    loss = model(inner, training=True).sum()
    del inner
    gc.collect()
    assert held() is not None
    loss.backward()
    gc.collect()
    assert held() is None and x.grad is not None


@pytest.mark.modes("loop")
def test_nothing_is_kept_after_the_gradient(mode, target, keras, L, tf):
    model, x = make_chain(target, True), tf.constant(X)
    with tf.GradientTape() as tape:
        inner = x * 2.0
        held = weakref.ref(inner)
        loss = tf.reduce_sum(model(inner))
    del inner
    assert held() is not None
    tape.gradient(loss, model.trainable_weights)
    gc.collect()
    assert held() is None


@pytest.mark.modes("loop")
def test_nothing_is_kept_without_a_tape(mode, target, keras, tf):
    model, x = make_chain(target, True), tf.constant(X)
    inner = x * 2.0
    held = weakref.ref(inner)
    outputs = model(inner)
    del inner
    gc.collect()
    assert held() is None and outputs.shape == (4, 2)


@pytest.mark.needs("told runs")
@pytest.mark.modes("loop")
@pytest.mark.parametrize(
    "arguments", [{"strategy": 1}, {"strategy": "every", "exclude": "minus_.*"}], ids=str
)
def test_what_nobody_reads_any_more_is_let_go(arguments, target, mode, keras):
    """Keras holds what all layers put out until the call of a model ends; a converted model does not."""
    target.reset()
    outputs, held = [], []

    def watched(layer):
        call = layer.call

        def noted(*args, **kwargs):
            gc.collect()  # functions of PyTorch for trees leave cycles
            held.append(sum(made() is not None for made in outputs))
            result = call(*args, **kwargs)
            outputs.append(weakref.ref(result))
            return result

        layer.call = noted
        return layer

    x = keras.Input((8,))
    y = keras.layers.Dense(8)(x)
    for i in range(12):
        y = watched(keras.layers.Lambda(lambda t: -t, name=f"minus_{i}"))(y)
    model = recompute_all(keras.Model(x, keras.layers.Dense(2)(y)), **arguments)
    trainer = steps.trainer(target, mode, model)
    outputs.clear()
    held.clear()
    trainer.train([X], floats(4, 2), 1)
    assert len(held) in (12, 24) and max(held) <= 2
