"""One suite for every Keras: `--target` chooses it, fixtures show it, the table of limits marks it.

Each test that asks for `mode` runs in all modes that the target has, or in those of the marker
`modes(...)`. Tests of layers that the target does not have are not collected.
"""

import gc
import os
from collections import defaultdict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# On JAX most of a test is XLA's compiling, and a quarter of that LLVM's work on code that runs once. What
# tests look at, XLA's own program and its buffers, is made before that.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.pop("RECOMPUTE", None)

import limits
import mutation
import pytest
import targets


def pytest_addoption(parser):
    parser.addoption("--target", choices=targets.NAMES, help="the Keras under test")
    parser.addoption("--part", help="N/M: of the tests of each file, every M-th from the N-th on")


def pytest_configure(config):
    config.addinivalue_line("markers", "modes(*names): the modes in which a test runs")
    config.addinivalue_line("markers", "needs(*names): layers or features without which a test is left out")
    # What old TensorFlows say about Python, and Python about them, is not for us to change.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore::FutureWarning")
    config.target = targets.load(config.getoption("--target") or targets.best_name())
    mutation.apply(os.environ.get(mutation.VARIABLE))


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("modes")
        modes = metafunc.config.target.modes
        wanted = marker.args if marker else modes
        # None stands for "has none of them", and is left out below.
        metafunc.parametrize("mode", [mode for mode in modes if mode in wanted] or [None])


def pytest_collection_modifyitems(config, items):
    kept, left_out = [], []
    no_tensorflow = config.target.tf is None
    for item in items:
        needed = [name for marker in item.iter_markers("needs") for name in marker.args]
        exists = all(map(config.target.has, needed)) and not ("tf" in item.fixturenames and no_tensorflow)
        params = getattr(getattr(item, "callspec", None), "params", {})
        (kept if exists and params.get("mode", "any") else left_out).append(item)
        limit = limits.limit_of(item.nodeid.rpartition("/")[2], config.target)
        if limit:
            item.add_marker(pytest.mark.xfail(reason=limit.reason, strict=True))
    items[:] = _part(kept, config.getoption("--part"))
    config.hook.pytest_deselected(items=left_out + [item for item in kept if item not in set(items)])


def _part(items, part):
    """List the items of a part: some of each file, and all that are limits, for the page of these."""
    if part is None:
        return items
    number, count = map(int, part.split("/"))
    files = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("xfail"):
            files[item.fspath].append(item)
    chosen = set()
    for tests in files.values():
        chosen.update(tests[number - 1 :: count] or tests[:1])
    return [item for item in items if item in chosen or item.get_closest_marker("xfail")]


def pytest_runtest_logfinish():
    """Let the next test look for garbage in its own objects only: what is left was imported, or cached."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def target(request):
    return request.config.target


@pytest.fixture
def keras(target):
    target.reset()
    return target.keras


@pytest.fixture
def L(keras, target):
    """The layers of this Keras, those that it calls experimental as well."""

    class Layers:
        def __getattr__(self, name):
            return target.layer(name)

    return Layers()


@pytest.fixture
def tf(target):
    """TensorFlow: tests that ask for it are left out where the layers run on another framework."""
    return target.tf


@pytest.fixture
def ops(target):
    """Functions of tensors, by their names in `keras.ops`."""
    return target.ops


@pytest.fixture
def prove(target, mode):
    from blocks import Prove

    return Prove(target, mode)


@pytest.fixture(autouse=True)
def clean_thread():
    """Whatever a test did, no scope stays open on its thread."""
    yield
    from keras_remat.replay.scope import scopes

    assert scopes() == []
