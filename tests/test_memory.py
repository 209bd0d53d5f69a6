"""What is kept for the gradient: of a chain of layers, exactly the inputs of the segments.

Counted tensor by tensor, so nothing depends on a machine. That the executors of graphs do not undo it is
read from the graphs that they run.
"""

import gc
import weakref

import pytest
import steps
from proofs import floats, set_weights

from keras_remat import Recompute, RecomputeSequential

X = floats(4, 8)
COUNT = 6


class Watch:
    """Notes the inputs of layers, and tells which of them something keeps for the gradient."""

    def __init__(self):
        self.seen, self.graph, self.size = [], None, 0

    def __call__(self, layer):
        original = layer.call

        def call(inputs):
            if hasattr(inputs, "numpy"):
                self.seen.append(weakref.ref(inputs))
            else:
                if inputs.graph is not self.graph:
                    self.graph, self.seen = inputs.graph, []
                self.seen.append(inputs)
            outputs = original(inputs)
            self.size = len(self.graph.get_operations()) if self.graph is not None else 0
            return outputs

        layer.call = call
        return layer

    def held(self):
        """The positions of the layers whose eager inputs live."""
        gc.collect()
        return [i for i, ref in enumerate(self.seen) if ref() is not None]

    def read_later(self):
        """The positions of the layers whose inputs are read by what was made after the chain."""
        later = {op.name for op in self.graph.get_operations()[self.size :]}
        return [
            i
            for i, tensor in enumerate(self.seen)
            if any(op.name in later and op.type != "IdentityN" for op in tensor.consumers())
        ]


def kept(target, mode, wrap):
    """The positions of the layers of a chain whose inputs are kept."""
    target.reset()
    keras, watch, found = target.keras, Watch(), []
    layers = [watch(keras.layers.Dense(8, activation="tanh")) for _ in range(COUNT)]
    first = keras.layers.Activation("linear", input_shape=(8,))
    model = keras.Sequential([first] + wrap(layers) + [keras.layers.Dense(2)])
    if not target.is_symbolic:
        watch.__init__()

    def before_gradient():
        found[:] = watch.held()

    trainer = steps.trainer(target, mode, model, before_gradient=before_gradient)
    trainer.train([X], floats(4, 2), 1)
    return found if watch.graph is None else watch.read_later()


MODES = pytest.mark.modes("loop", "function", "graph")


@MODES
def test_plain_model_keeps_all(mode, target):
    assert kept(target, mode, lambda layers: layers) == list(range(COUNT))


@MODES
@pytest.mark.parametrize("segments", [1, 2, 3, 6])
def test_segments_keep_their_inputs(segments, mode, target):
    found = kept(target, mode, lambda layers: [RecomputeSequential(layers, segments=segments)])
    assert found == list(range(0, COUNT, COUNT // segments))


@MODES
def test_each_layer_keeps_its_input(mode, target):
    assert kept(target, mode, lambda layers: list(map(Recompute, layers))) == list(range(COUNT))


@MODES
def test_nested_blocks_keep_the_outer_input(mode, target):
    def wrap(layers):
        return [Recompute(RecomputeSequential(layers, segments=3))]

    assert kept(target, mode, wrap) == [0]


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
def test_grappler_merges_nothing(wrapped, mode, target, monkeypatch):
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
def test_xla_merges_nothing(mode, target):
    counts = []
    for wrapped in (False, True):
        trainer = steps.trainer(target, mode, make_chain(target, wrapped))
        tensors = [target.tf.constant(X)], target.tf.constant(floats(4, 2))
        text = trainer.step.experimental_get_compiler_ir(*tensors)(stage="optimized_hlo")
        counts.append(text.count(" tanh("))
    assert counts[1] >= 2 * counts[0] > 0


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
