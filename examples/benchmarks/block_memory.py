"""Peak memory and step time of a 24-block MLP: plain, one block at a time, sqrt(n) segments.

Each number comes from a process of its own under the heap counter, the variants take turns, and
the median over the rounds is shown. Memory is the peak of one training step above what was in use
before it (weights and data), so weight gradients, which no recomputation can save, are in it.

    python examples/benchmarks/block_memory.py [--quick] [--json FILE]
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import heap

MODES = ("eager", "graph", "xla")
VARIANTS = ("plain", "block", "sqrt")
LABELS = {"plain": "plain", "block": "each block", "sqrt": "sqrt segments"}
BLOCKS, BATCH, WIDTH, HIDDEN = 24, 2048, 256, 1024
TARGETS = {"eager": 6.0, "graph": 6.0, "xla": 2.0}  # for each block recomputed


def main():
    options = parse_options()
    if options.child:
        print(json.dumps(measure(options.child[0], options.child[1], options)))
        return
    results = collect(options)
    table = as_table(results)
    print(table)
    print("\n" + describe_environment(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.check:
        missed = [m for m in options.modes if factor(results, m, "block") < TARGETS[m]]
        if missed:
            sys.exit("Memory fell by less than the target in: " + ", ".join(missed))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, 2 steps each")
    parser.add_argument("--rounds", type=int, help="processes for each number (default 3)")
    parser.add_argument("--steps", type=int, help="measured steps in each process (default 5)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--check", action="store_true", help="fail below 6x (2x under XLA)")
    parser.add_argument("--child", nargs=2, metavar=("MODE", "VARIANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.steps = options.steps or (2 if options.quick else 5)
    if options.check and not {"plain", "block"} <= set(options.variants):
        parser.error("--check compares the variants plain and block")
    return options


def collect(options):
    """Run every mode and variant in turn, `rounds` times; return medians."""
    runs = {(m, v): [] for m in options.modes for v in options.variants}
    for round_number in range(options.rounds):
        for mode, variant in runs:
            note = f"round {round_number + 1}: {mode} {variant}"
            print(note, file=sys.stderr, flush=True)
            arguments = ["--child", mode, variant, "--steps", options.steps]
            output = list(heap.run(__file__, *arguments))
            runs[mode, variant].append(json.loads(output[-1]))
    return [
        {
            "mode": mode,
            "variant": variant,
            "peak_bytes": int(statistics.median(r["peak_bytes"] for r in found)),
            "step_seconds": statistics.median(r["step_seconds"] for r in found),
            "loss": found[0]["loss"],
            "processes": len(found),
            "tensorflow": found[0]["tensorflow"],
        }
        for (mode, variant), found in runs.items()
    ]


def measure(mode, variant, options):
    """One process: build, warm up, then measure some training steps."""
    import numpy as np
    import tensorflow as tf

    counter = heap.heap_of_this_process()
    tf.random.set_seed(1)
    model = build(variant)
    generator = np.random.RandomState(0)
    x = tf.constant(generator.randn(BATCH, WIDTH).astype("float32"))
    y = tf.constant(generator.randn(BATCH, WIDTH).astype("float32"))
    weights = model.trainable_variables

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        # Plain descent: an optimizer's own temporaries are not the subject here.
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(0.1 * gradient)
        return loss

    if mode == "graph":
        step = tf.function(step)
    elif mode == "xla":
        step = tf.function(step, jit_compile=True)
    for _ in range(2):
        float(step(x, y))
    peaks, seconds = [], []
    for _ in range(options.steps):
        peak, start = counter.watch(), time.perf_counter()
        loss = float(step(x, y))
        seconds.append(time.perf_counter() - start)
        peaks.append(peak())
    return {
        "peak_bytes": int(statistics.median(peaks)),
        "step_seconds": statistics.median(seconds),
        "loss": loss,
        "tensorflow": tf.__version__,
    }


def build(variant):
    try:
        import tf_keras as keras
    except ImportError:  # TensorFlow up to 2.15 brings Keras 2
        from tensorflow import keras

    def block(number):
        wide = keras.layers.Dense(HIDDEN, activation="gelu")
        return keras.Sequential([wide, keras.layers.Dense(WIDTH)], name=f"block{number}")

    blocks = [block(number) for number in range(BLOCKS)]
    if variant == "block":
        from keras_remat import Recompute

        blocks = [Recompute(layer) for layer in blocks]
    elif variant == "sqrt":
        from keras_remat import RecomputeSequential

        blocks = [RecomputeSequential(blocks, segments="sqrt")]
    inputs = keras.Input((WIDTH,), batch_size=BATCH)
    outputs = inputs
    for layer in blocks:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def factor(results, mode, variant):
    """How many times less memory than plain."""
    peaks = {(r["mode"], r["variant"]): r["peak_bytes"] for r in results}
    return peaks[mode, "plain"] / peaks[mode, variant]


def as_table(results):
    """The results as a Markdown table."""
    lines = [
        "| mode | recomputed | peak of a step, MB | less by | step, s | step time |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    plain = {r["mode"]: r for r in results if r["variant"] == "plain"}
    for result in results:
        mode, variant = result["mode"], result["variant"]
        saved = slower = ""
        if mode in plain and variant != "plain":
            saved = f"{factor(results, mode, variant):.1f}x"
            ratio = result["step_seconds"] / plain[mode]["step_seconds"]
            slower = f"x {ratio:.2f}"
        peak, seconds = result["peak_bytes"] / heap.MB, result["step_seconds"]
        cells = [mode, LABELS[variant], f"{peak:.0f}", saved, f"{seconds:.2f}", slower]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_environment(results):
    shape = f"{BLOCKS} blocks of {WIDTH}-{HIDDEN}-{WIDTH}, batch {BATCH}"
    versions = f"TensorFlow {results[0]['tensorflow']}, Python {platform.python_version()}"
    cores, processes = len(os.sched_getaffinity(0)), results[0]["processes"]
    return f"{shape}; {versions}, {cores} cores, median of {processes} processes each."


if __name__ == "__main__":
    main()
