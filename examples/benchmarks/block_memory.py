"""Peak memory and step time of a 24-block MLP: plain, one block at a time, sqrt(n) segments.

Each number comes from a process of its own under the heap counter, the variants take turns, and
the median over the rounds is shown. Memory is the peak of one training step of Keras above what
was in use before it (weights and data), so weight gradients, which no recomputation can save, are
in it. TensorFlow has three modes; the step on JAX is compiled, that on PyTorch is not.

    python examples/benchmarks/block_memory.py [--quick] [--modes MODE ...] [--json FILE]
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import heap


class Mode(NamedTuple):
    """A way to run a step: `target` is how many times less memory each block recomputed must take."""

    title: str
    backend: str
    compiled: dict  # arguments of Model.compile
    target: float


MODES = {
    "eager": Mode("TensorFlow, eager", "tensorflow", {"run_eagerly": True}, 6.0),
    "graph": Mode("TensorFlow, graph", "tensorflow", {"jit_compile": False}, 6.0),
    "xla": Mode("TensorFlow, XLA", "tensorflow", {"jit_compile": True}, 2.0),
    "jax": Mode("JAX", "jax", {"jit_compile": True}, 2.0),
    "torch": Mode("PyTorch", "torch", {"jit_compile": False}, 4.0),
}
VARIANTS = {"plain": "plain", "block": "each block", "sqrt": "sqrt segments"}
BLOCKS, BATCH, WIDTH, HIDDEN = 24, 2048, 256, 1024


def main():
    options = parse_options()
    if options.child:
        print(json.dumps(measure(*options.child, options.steps)))
        return
    results = collect(options)
    print(as_table(results))
    print("\n" + describe_environment(options))
    if options.json:
        listed = [{"mode": m, "variant": v, **result} for (m, v), result in results.items()]
        options.json.write_text(json.dumps(listed, indent=1) + "\n")
    if options.check:
        missed = [m for m in options.modes if factor(results, m, "block") < MODES[m].target]
        if missed:
            sys.exit("Memory fell by less than the target in: " + ", ".join(missed))


def parse_options():
    installed = [mode for mode in MODES if find_spec(MODES[mode].backend)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one round, 2 steps each, plain and each block recomputed"
    )
    parser.add_argument("--rounds", type=int, help="processes for each number (default 3)")
    parser.add_argument("--steps", type=int, help="measured steps in each process (default 5)")
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=list(MODES),
        default=installed,
        help="default: those of the backends that are installed",
    )
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail where each block recomputed saves less than its mode should",
    )
    parser.add_argument("--child", nargs=2, metavar=("MODE", "VARIANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.steps = options.steps or (2 if options.quick else 5)
    options.variants = options.variants or (["plain", "block"] if options.quick else list(VARIANTS))
    if options.check and not {"plain", "block"} <= set(options.variants):
        parser.error("--check compares the variants plain and block")
    for mode in options.modes:
        if mode not in installed:
            parser.error(f"mode {mode} needs {MODES[mode].backend}, which is not installed here")
        if MODES[mode].backend != "tensorflow" and not heap.compiler():
            parser.error(f"to count memory, mode {mode} needs glibc and a C compiler")
    return options


def collect(options):
    """Run every mode and variant in turn, `rounds` times; return medians."""
    runs = {(m, v): [] for m in options.modes for v in options.variants}
    for round_number in range(options.rounds):
        for mode, variant in runs:
            note = f"round {round_number + 1}: {mode} {variant}"
            print(note, file=sys.stderr, flush=True)
            arguments = ["--child", mode, variant, "--steps", options.steps]
            output = list(heap.run(__file__, *arguments, env={"KERAS_BACKEND": MODES[mode].backend}))
            runs[mode, variant].append(json.loads(output[-1]))
    return {
        key: {
            "peak_bytes": int(statistics.median(r["peak_bytes"] for r in found)),
            "step_seconds": statistics.median(r["step_seconds"] for r in found),
            "loss": found[0]["loss"],
        }
        for key, found in runs.items()
    }


def measure(mode, variant, steps):
    """One process: build, warm up, then measure some training steps."""
    import keras
    import numpy as np

    counter = heap.heap_of_this_process()
    keras.utils.set_random_seed(1)
    model = build(variant)
    # Plain descent: an optimizer's own temporaries are not the subject here.
    model.compile(keras.optimizers.SGD(0.1), "mse", **MODES[mode].compiled)
    generator = np.random.RandomState(0)
    x, y = (keras.ops.convert_to_tensor(generator.randn(BATCH, WIDTH).astype("float32")) for _ in range(2))
    peaks, seconds = [], []
    for _ in range(2 + steps):
        model.reset_metrics()
        if mode == "torch":
            model.zero_grad()  # the gradients of a step count to it, as on the other backends
        heap.settle()
        peak, start = counter.watch(), time.perf_counter()
        loss = float(model.train_on_batch(x, y))
        seconds.append(time.perf_counter() - start)
        peaks.append(peak())
    return {
        "peak_bytes": int(statistics.median(peaks[2:])),
        "step_seconds": statistics.median(seconds[2:]),
        "loss": loss,
    }


def build(variant):
    import keras

    from keras_remat import Recompute, RecomputeSequential

    def block(number):
        wide = keras.layers.Dense(HIDDEN, activation="gelu")
        return keras.Sequential([wide, keras.layers.Dense(WIDTH)], name=f"block{number}")

    blocks = [block(number) for number in range(BLOCKS)]
    if variant == "block":
        blocks = [Recompute(layer) for layer in blocks]
    elif variant == "sqrt":
        blocks = [RecomputeSequential(blocks, segments="sqrt")]
    inputs = keras.Input((WIDTH,), batch_size=BATCH)
    outputs = inputs
    for layer in blocks:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def factor(results, mode, variant):
    """How many times less memory than plain."""
    return results[mode, "plain"]["peak_bytes"] / results[mode, variant]["peak_bytes"]


def as_table(results):
    """The results as a Markdown table, a row for each mode."""
    modes, variants = (list(dict.fromkeys(keys)) for keys in zip(*results))
    titles = " | ".join(VARIANTS[variant] for variant in variants)
    rows = [
        f"| {BLOCKS} blocks of {WIDTH}-{HIDDEN}-{WIDTH}, GELU, batch {BATCH} | {titles} |",
        f"| --- |{' ---: |' * len(variants)}",
    ]
    for mode in modes:
        cells = " | ".join(as_cell(results, mode, variant) for variant in variants)
        rows.append(f"| {MODES[mode].title} | {cells} |")
    return "\n".join(rows)


def as_cell(results, mode, variant):
    result, plain = results[mode, variant], results.get((mode, "plain"))
    peak = f"{result['peak_bytes'] / heap.MB:.0f} MB"
    if plain is None or result is plain:
        return f"{peak}, {result['step_seconds']:.2f} s"
    ratio = result["step_seconds"] / plain["step_seconds"]
    return f"{peak} ({factor(results, mode, variant):.1f}x less), x {ratio:.2f}"


def describe_environment(options):
    names = dict.fromkeys(["keras", *(MODES[mode].backend for mode in options.modes)])
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    cores = len(os.sched_getaffinity(0))
    return (
        f"{versions}, Python {platform.python_version()}, {cores} cores, "
        f"median of {options.rounds} processes each."
    )


if __name__ == "__main__":
    main()
