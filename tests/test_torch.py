"""What only PyTorch has: modules with buffers, random numbers, tensors written in place, processes."""

import gc
import os
import socket
import subprocess
import sys
import types
import weakref
from pathlib import Path

import numpy as np
import plan_models
import pytest
from custom import make_layer
from model_proofs import cut
from proofs import assert_same, floats, set_weights

from keras_remat import (
    Recompute,
    RecomputeMismatchError,
    RematError,
    is_recomputing,
    plan,
    recompute_all,
    recompute_enabled,
    recompute_grad,
)

pytestmark = [pytest.mark.needs("torch"), pytest.mark.modes("loop", "fit")]

X = floats(4, 6)


@pytest.fixture
def torch(mode):
    import torch

    return torch


@pytest.fixture
def torch_records(torch, monkeypatch):
    """The counter of buffers, without those that are left in cycles, by PyTorch's functions for trees."""
    import torch_records

    def found(structure, tensors=torch_records._tensors):
        gc.collect(0)
        return tensors(structure)

    monkeypatch.setattr(torch_records, "_tensors", found)
    return torch_records


@pytest.mark.modes("loop")
@pytest.mark.parametrize("strategy", ["sqrt", "auto"])
def test_predicted_peak_is_that_of_a_step(strategy, torch_records, mode, keras):
    """Much of the peak is what a layer holds while it runs."""
    model, x = plan_models.bert(8, 32, 3, 64, 2, words=50)
    made = plan(model, strategy=strategy, batch_size=8)
    recompute_all(model, strategy=made)
    peak = torch_records.peak(torch_records.make_step(model, x))
    assert made.peak_bytes < 0.5 * made.baseline_bytes
    assert abs(made.peak_bytes / peak - 1) < 0.15


def test_random_numbers_of_torch(prove, keras, torch):
    def call(self, inputs):
        return torch.nn.functional.dropout(inputs @ self.kernel, 0.5)

    prove(lambda: make_layer(keras, call), X, predict=False)


@pytest.mark.modes("loop")
def test_module_with_buffers(mode, torch, keras, L):
    """Running statistics of a module of PyTorch move once a step."""
    results = []
    for wrap in (lambda layer: layer, Recompute):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3), torch.nn.Tanh()
        )
        block = wrap(keras.Sequential([L.TorchModuleWrapper(module)]))  # held in a list of Keras
        torch.manual_seed(1)
        for _ in range(3):
            x = torch.tensor(X, requires_grad=True)
            block(x, training=True).square().sum().backward()
        results.append([x.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    for plain, wrapped in zip(*results):
        assert_same("gradient or buffer", plain.numpy(), wrapped.numpy())
    assert results[1][-1] == 3  # batches that were counted


@pytest.mark.modes("loop")
def test_module_in_a_function(mode, torch, keras):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.BatchNorm1d(6)

        @recompute_grad(enabled=True)
        def forward(self, x):
            return torch.tanh(self.inner(x))

    modules, dense = [torch.nn.BatchNorm1d(6) for _ in range(3)], keras.layers.Dense(6)
    in_closure, in_object, beside_layer = modules
    holder = types.SimpleNamespace(module=in_object)
    net = Net()
    for run in (
        net,
        recompute_grad(lambda x: torch.tanh(in_closure(x)), enabled=True),
        recompute_grad(lambda x: torch.tanh(holder.module(x)), enabled=True),
        recompute_grad(lambda x: torch.tanh(beside_layer(dense(x))), enabled=True),
    ):
        run(torch.tensor(X, requires_grad=True)).sum().backward()
    assert [m.num_batches_tracked for m in (net.inner, *modules)] == [1, 1, 1, 1]


def make_shifted(keras, torch):
    def call(self, inputs):
        return torch.tanh(inputs @ self.kernel + self.shift)

    layer = make_layer(keras, call, shift=(6,))
    layer.build((None, 6))
    set_weights(layer)
    return layer


@pytest.mark.modes("loop")
def test_variable_assigned_before_the_gradient(mode, torch, keras):
    """The second run finds what the first one read, whatever was assigned since."""
    results = []
    for wrap in (lambda layer: layer, Recompute):
        layer = make_shifted(keras, torch)
        x = torch.tensor(X, requires_grad=True)
        loss = wrap(layer)(x).square().sum()
        layer.shift.assign(np.ones(6, "float32"))
        loss.backward()
        results.append([x.grad, layer.kernel.value.grad, layer.shift.value.grad])
    for plain, wrapped in zip(*results):
        assert_same("gradient", plain.numpy(), wrapped.numpy())


@pytest.mark.modes("loop")
def test_tensor_written_before_the_gradient(mode, torch, keras):
    block = Recompute(make_shifted(keras, torch))
    loss = block(torch.tensor(X)).sum()
    with torch.no_grad():
        block.layer.shift.value.add_(1.0)
    with pytest.raises(RecomputeMismatchError, match="must not be written"):
        loss.backward()
    block(torch.tensor(X)).sum().backward()  # the next call is not harmed


@pytest.mark.modes("loop")
def test_second_run_that_differs(mode, torch, keras):
    def call(self, inputs):
        return torch.tanh(inputs @ self.kernel) * (3.0 if is_recomputing() else 2.0)

    block = Recompute(make_layer(keras, call))
    with pytest.raises(RecomputeMismatchError, match="in its second run"):
        block(torch.tensor(X)).sum().backward()
    assert not is_recomputing()


@pytest.mark.modes("loop")
def test_second_derivatives_and_kept_graphs(mode, torch, keras, L):
    results = []
    for wrap in (lambda layer: layer, Recompute):
        model = keras.Sequential([keras.Input((6,)), wrap(L.Dense(6, activation="tanh")), L.Dense(1)])
        set_weights(model)
        x = torch.tensor(X, requires_grad=True)
        outputs = model(x, training=True).square().sum()
        (first,) = torch.autograd.grad(outputs, x, create_graph=True)
        (again,) = torch.autograd.grad(outputs, x, retain_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append([first.detach(), again, second])
    for plain, wrapped in zip(*results):
        assert_same("derivative", plain.numpy(), wrapped.numpy())


@pytest.mark.modes("loop")
def test_switch_is_remembered(mode, torch, keras):
    """A gradient that is taken outside of `recompute_enabled` runs what the call ran."""

    @recompute_grad
    def call(self, inputs):
        return torch.tanh(inputs @ self.kernel)

    results = []
    for flag in (False, True):
        block = Recompute(make_layer(keras, call))
        block.build((None, 6))
        set_weights(block)
        x = torch.tensor(X, requires_grad=True)
        with recompute_enabled(flag):
            loss = block(x).square().sum()
        loss.backward()
        results.append(x.grad)
    assert_same("gradient", *(grad.numpy() for grad in results))


@pytest.mark.modes("loop")
def test_functional_transformations(mode, torch, keras, L):
    block = Recompute(L.Dense(6, activation="tanh"))
    block.build((None, 6))
    gradient = torch.func.grad(lambda x: block(x).sum())
    with pytest.raises(RematError, match="torch.func"):
        gradient(torch.tensor(X))
    with recompute_enabled(False):
        assert gradient(torch.tensor(X)).shape == (4, 6)


@pytest.mark.modes("loop")
def test_nothing_is_kept_without_gradients(mode, torch, keras, L):
    block = Recompute(L.Dense(6, activation="tanh"))
    with torch.no_grad():
        assert block(torch.tensor(X)).grad_fn is None
    with torch.inference_mode():
        assert block(torch.tensor(X)).grad_fn is None


@pytest.mark.modes("loop")
def test_two_processes(mode, tmp_path):
    """`DistributedDataParallel`: gradients are the plain model's under the same setting."""
    script = str(Path(__file__).with_name("distributed_torch.py"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    environment.update(PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")
    processes = [
        subprocess.Popen([sys.executable, script], env={**environment, "RANK": str(rank)}) for rank in (0, 1)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]


def make_with_policy(keras, L):
    """A layer that has an attribute which a wrapper has, too."""
    layer = make_layer(keras, lambda self, inputs: keras.ops.tanh(inputs @ self.kernel) * self.policy)
    layer.policy = 2.0
    return layer


COMPILED = {
    "model": lambda keras, L: keras.Sequential([L.Dense(8, "gelu"), L.LayerNormalization(), L.Dense(6)]),
    "attribute layer": lambda keras, L: L.SpectralNormalization(L.Dense(6)),
    "attribute policy": make_with_policy,
}


@pytest.mark.modes("fit")
@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
def test_compiled(make, mode, target, torch, keras, L):
    """A model with wrappers compiles as the plain one does."""
    results = []
    for wrap in (lambda layer: layer, Recompute):
        target.reset()
        block = make(keras, L)
        model = keras.Sequential([keras.Input((6,)), wrap(block), L.Dense(1)])
        set_weights(model)
        run = torch.compile(model, backend="aot_eager")
        x = torch.tensor(X, requires_grad=True)
        run(x, training=True).square().sum().backward()
        results.append([x.grad, *(w.value.grad for w in model.trainable_weights)])
    for plain, wrapped in zip(*results):
        assert_same("gradient", plain.numpy(), wrapped.numpy(), 1e-6)


@pytest.mark.modes("loop")
def test_input_written_in_place(mode, torch, L):
    module = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(6, 6))
    hidden = torch.tensor(X, requires_grad=True) * 2
    with pytest.raises(RematError, match="inplace=False"):
        Recompute(L.TorchModuleWrapper(module))(hidden)


EXPORTS = {
    "export": lambda torch, model, x: torch.export.export(model, (x,)).module(),
    "jit": lambda torch, model, x: torch.jit.trace(model, x),
}


@pytest.mark.modes("loop")
@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_exported_program(export, mode, torch, keras, L):
    """It predicts what the model does."""
    model = keras.Sequential([keras.Input((6,)), L.Dense(6, activation="gelu"), Recompute(L.Dense(3))])
    x = torch.tensor(X)
    plain = model(x, training=False).detach()
    run = export(torch, cut(model), x)
    assert_same("output", plain.numpy(), run(x).detach().numpy(), 1e-6)


@pytest.mark.modes("loop")
def test_mask_set_after_the_call(mode, torch, keras, L):
    """The second run finds its input as the first one did, unmasked."""
    results = []
    for wrap in (lambda layer: layer, Recompute):
        lstm = wrap(L.LSTM(3))
        lstm.build((4, 5, 6))
        set_weights(lstm)
        x = torch.tensor(floats(4, 5, 6), requires_grad=True)
        mask = torch.tensor([[True, True, False, False, False]] * 4)
        loss = lstm(x).square().sum()
        x._keras_mask = mask
        loss.backward()
        assert x._keras_mask is mask
        results.append(x.grad)
    assert_same("gradient", *(g.numpy() for g in results))


@pytest.mark.modes("loop")
def test_what_second_runs_saved_is_let_go(mode, keras, L, torch):
    """Without waiting for Python's collector: Keras's `tree` leaves cycles with tensors of the block."""
    made = []

    class Half(L.Layer):
        def call(self, x):
            factor = np.full(tuple(x.shape), 0.5, "float32")
            made.append(weakref.ref(factor))
            return x * torch.from_numpy(factor)

    class Block(L.Layer):
        def __init__(self):
            super().__init__()
            self.scale, self.add = Half(), L.Add()

        def call(self, x):
            return self.add([x, self.scale(x)])

    block = Recompute(Block())
    x = torch.ones(2, 3, requires_grad=True)
    block(x)
    del made[:]
    gc.collect()
    gc.disable()
    try:
        block(x).sum().backward()
        assert len(made) == 2
        assert [ref() is None for ref in made] == [True, True]
    finally:
        gc.enable()
    assert torch.equal(x.grad, torch.full((2, 3), 1.5))
