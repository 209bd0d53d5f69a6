"""Shows that the tests can fail: each mutant breaks the engine, and named tests must notice it.

`python tests/mutation.py` runs the tests of `test_modes.py` once with each mutant, which `conftest`
applies when the environment names it. A test that must fail under a mutant and passes is a survivor.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Callable, NamedTuple, Tuple

import targets

VARIABLE = "KERAS_REMAT_MUTANT"
TESTS = Path(__file__).resolve().parent


def _call_plainly():
    """Blocks are not recomputed at all."""
    from keras_remat import engine

    engine.call = lambda block, args, kwargs, default=True: block.run(*args, **kwargs)


def _draw_again():
    """The second run draws other random numbers."""
    target = targets.current()
    if target.is_keras3:
        _seed_again(target.keras.random.SeedGenerator)
    if target.tf is not None:
        _draw_again_in_graphs()


def _seed_again(generator):
    """The second run of Python gets other seeds."""
    from keras_remat import is_recomputing

    draw = generator.next

    def next_seed(self, *args, **kwargs):
        seed = draw(self, *args, **kwargs)
        return seed + 1 if is_recomputing() else seed

    generator.next = next_seed


def _draw_again_in_graphs():
    """Ops of Keras 2 draw anew, as do those of graphs; Keras 3 reads seeds from variables there."""
    from keras_remat.replay import scope, subgraph

    noted, find_boundary, copy_tensors = scope.noted, subgraph.find_boundary, subgraph.copy_tensors
    drawn = set()

    def draw(what, make, depth=None):
        value = noted(what, make, depth)
        return make() if scope.is_replaying() else value

    def is_random(tensor):
        reads_seed = tensor.op.type == "ReadVariableOp" and tensor.dtype.is_integer
        return tensor.op.type.startswith("Random") or reads_seed

    def find(*args):
        found = find_boundary(*args)
        drawn.update(subgraph.key(t) for t in found if is_random(t))
        return found

    def copy(outputs, feeds, *args):
        feeds = {name: leaf + 1 if name in drawn else leaf for name, leaf in feeds.items()}
        return copy_tensors(outputs, feeds, *args)

    scope.noted, subgraph.find_boundary, subgraph.copy_tensors = draw, find, copy


def _forget_state():
    """The second run sees the state that the first one left behind."""
    if targets.current().tf is None:
        from keras_remat.families import keras3_state

        keras3_state._Entry.keep = keras3_state._Entry.check = lambda self, *args: None
    else:
        from keras_remat.replay import eager

        eager.handles.standing_in = lambda entries: contextlib.ExitStack()


class Mutant(NamedTuple):
    """A broken engine: the tests that must fail with it, some that must still pass, and where it exists."""

    apply: Callable
    fail: Tuple[str, ...]
    passing: Tuple[str, ...] = ()
    frameworks: Tuple[str, ...] = ("tensorflow", "torch")  # what runs again on JAX is a program


MUTANTS = {
    "call-plainly": Mutant(
        _call_plainly,
        ("test_ran_again", "test_keeps_less"),
        passing=("test_same_numbers",),
        frameworks=("tensorflow", "torch", "jax"),
    ),
    "draw-again": Mutant(_draw_again, ("test_same_masks",), passing=("test_ran_again",)),
    "forget-state": Mutant(_forget_state, ("test_same_state_eagerly",), passing=("test_ran_again",)),
}


def apply(name):
    """Break the engine in this process if `name` names a mutant."""
    if name:
        MUTANTS[name].apply()


def outcomes(name, options):
    """{test: passed} for the tests of `test_modes.py` that concern a mutant."""
    mutant = MUTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        chosen = " or ".join(mutant.fail + mutant.passing)
        command = [sys.executable, "-m", "pytest", str(TESTS / "test_modes.py"), "-q", "-k", chosen]
        command += ["--tb=no", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
        environment = {**os.environ, VARIABLE: name, "PYTHONPATH": str(TESTS.parent)}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
        cases = list(ElementTree.parse(str(report)).iter("testcase"))
    return {case.get("name"): not list(case) for case in cases}


def main(options):
    survivors = 0
    name = options[options.index("--target") + 1] if "--target" in options else targets.best_name()
    framework = targets.framework_of(name)
    for name, mutant in MUTANTS.items():
        if framework not in mutant.frameworks:
            continue
        found = outcomes(name, options)
        for test, passed in sorted(found.items()):
            expected = test.startswith(mutant.passing or "-")
            if passed != expected:
                survivors += 1
                print(f"{name}: {test} {'passed' if passed else 'failed'}")
        if not any(test.startswith(mutant.fail) for test in found):
            survivors += 1
            print(f"{name}: no test was run")
        print(f"{name}: {sum(not passed for passed in found.values())} of {len(found)} tests failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
