"""`recompute_grad` on functions of a framework's own tensors, in a process where no Keras is loaded."""

import subprocess
import sys

import pytest

# Each makes `gradient` of a function that multiplies `x` by random numbers, its `outputs` and `runs`.
SCRIPTS = {
    "tensorflow": """
import tensorflow as tf
tf.compat.v1.enable_eager_execution()

@recompute_grad(enabled=True)
def function(x):
    runs.append(1)
    return x * tf.random.uniform([2])

x = tf.constant([0.3, -0.2])
with tf.GradientTape() as tape:
    tape.watch(x)
    outputs = function(x)
gradient = tape.gradient(outputs, x)
""",
    "jax": """
import jax

@recompute_grad(enabled=True)
def function(x, key):
    jax.debug.callback(lambda: runs.append(1))
    return x * jax.random.uniform(key, (2,))

x, key = jax.numpy.asarray([0.3, -0.2]), jax.random.key(3)
gradient, outputs = jax.grad(lambda x: (lambda y: (y.sum(), y))(function(x, key)), has_aux=True)(x)
jax.effects_barrier()
""",
    "torch": """
import torch

@recompute_grad(enabled=True)
def function(x):
    runs.append(1)
    return x * torch.rand(2)

x = torch.tensor([0.3, -0.2], requires_grad=True)
outputs = function(x)
gradient, = torch.autograd.grad(outputs.sum(), x)
x, outputs = x.detach(), outputs.detach()
""",
}
BEFORE = """
import sys
sys.modules["keras"] = sys.modules["tf_keras"] = None  # as if they were not installed
import numpy as np
from keras_remat import recompute_grad
runs = []
"""
AFTER = """
assert len(runs) == 2, runs
np.testing.assert_allclose(np.array(gradient), np.array(outputs) / np.array(x), rtol=1e-5)
"""


@pytest.mark.parametrize("framework", [pytest.param(f, marks=pytest.mark.needs(f)) for f in SCRIPTS])
def test_function_alone(framework):
    """It runs again, and draws what it drew."""
    subprocess.run([sys.executable, "-c", BEFORE + SCRIPTS[framework] + AFTER], check=True)


def test_no_framework():
    script = """
import keras_remat
try:
    keras_remat.recompute_grad(len, enabled=True)([1])
except keras_remat.UnsupportedFamilyError as error:
    assert "none of tensorflow, jax, torch is imported" in str(error), error
else:
    raise AssertionError("not refused")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
