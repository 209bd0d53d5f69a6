"""Predicted and measured peak of training steps under several plans, and their time.

Each number comes from a process of its own under the heap counter; plans take turns. The peak is that of one
step of a `tf.function` above what was in use before it. Gradients of weights are summed up as they come, so
that they are not what fills the memory.

    python examples/benchmarks/plans.py [--quick] [--models NAME...] [--plans PLAN...] [--json FILE]
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import heap
import plan_models

PLANS = ("none", "every", "sqrt", "auto", "0.5", "0.25")  # numbers: budgets, as a part of the plain model's


def main():
    options = parse_options()
    if options.child:
        print(json.dumps(measure(*options.child, options.steps)))
        return
    results = {}
    for round_number in range(options.rounds):
        for model in options.models:
            for plan in options.plans:
                (line,) = heap.run(__file__, "--child", model, plan, "--steps", options.steps)
                results.setdefault(model, {}).setdefault(plan, []).append(json.loads(line))
                print(f"round {round_number + 1}: {model}, {plan}: {results[model][plan][-1]}", flush=True)
    print("\n" + as_table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the smallest model, one round of one step")
    parser.add_argument("--models", nargs="+", choices=plan_models.MODELS)
    parser.add_argument("--plans", nargs="+", metavar="PLAN", help=f"of {', '.join(PLANS)}")
    parser.add_argument("--rounds", type=int, help="processes for each number (default 3)")
    parser.add_argument("--steps", type=int, help="measured steps in each process (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "PLAN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    quick = [plan_models.SMALLEST]
    options.models = options.models or (quick if options.quick else list(plan_models.MODELS))
    options.plans = options.plans or (["none", "sqrt", "auto", "0.5"] if options.quick else list(PLANS))
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.steps = options.steps or (1 if options.quick else 3)
    return options


def measure(name, choice, steps):
    """Return predicted and measured peak in bytes, and the seconds of a step."""
    import tensorflow as tf

    from keras_remat import recompute_all

    model, x = plan_models.MODELS[name]()
    found = choose(model, choice, len(x))
    if choice != "none":
        recompute_all(model, strategy=found)
    x = tf.constant(x)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(x, training=True), "float32")))
        grads = tape.gradient(loss, model.trainable_variables)
        return loss, tf.add_n(
            [tf.reduce_sum(tf.convert_to_tensor(grad)) for grad in grads if grad is not None]
        )

    counted, peaks, seconds = heap.heap_of_this_process(), [], []
    for _ in range(steps + 1):
        heap.settle()
        peak, start = counted.watch(), time.perf_counter()
        [float(t) for t in step()]
        seconds.append(time.perf_counter() - start)
        peaks.append(peak())
    predicted = found.baseline_bytes if choice == "none" else found.peak_bytes
    return {
        "predicted": predicted,
        "measured": int(statistics.median(peaks[1:])),
        "seconds": statistics.median(seconds[1:]),
        "work": 0.0 if choice == "none" else found.extra_work,
    }


def choose(model, choice, batch_size):
    from keras_remat import plan

    if choice in ("every", "sqrt", "auto"):
        return plan(model, strategy=choice, batch_size=batch_size)
    automatic = plan(model, batch_size=batch_size)
    if choice == "none":
        return automatic
    return plan(model, memory_budget=int(float(choice) * automatic.baseline_bytes), batch_size=batch_size)


def as_table(results):
    lines = [
        "| model | plan | predicted | measured | plain over it | forward work again | step time |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for model, plans in results.items():
        middle = {plan: _medians(runs) for plan, runs in plans.items()}
        plain = middle.get("none")
        for plan, found in middle.items():
            factor = f"{plain['measured'] / found['measured']:.2f}x" if plain else ""
            slower = f"x {found['seconds'] / plain['seconds']:.2f}" if plain else f"{found['seconds']:.2f} s"
            cells = [model, plan, f"{found['predicted'] / 1e6:.0f} MB", f"{found['measured'] / 1e6:.0f} MB"]
            cells += [factor, f"{100 * found['work']:.0f} %", slower]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _medians(runs):
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


if __name__ == "__main__":
    main()
