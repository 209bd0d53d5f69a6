"""Training steps under several plans: predicted and measured peak, and their time.

Each model has a process of its own, in which the plans take turns. A step sums up the gradients of weights as
they come, so that they are not what fills the memory. Measured are the most bytes of tensors at a time, which
is what a plan predicts: from TensorFlow's records of their allocation, from XLA's plan of a compiled step on
JAX, from the ops that run on PyTorch. And the peak of the heap above what was in use before the step. The
heap also has what kernels take for themselves: on a CPU without oneDNN, copies of matrices and patches of
images, tens of megabytes at a time.

With `--applications` it is all of `keras.applications`, small images and a batch of 32. At the end are the
names of models whose plan takes more than no plan, or than the plan "sqrt": there should be none.

    python examples/benchmarks/plans.py [--quick] [--small | --applications] [--backend BACKEND]
                                        [--models NAME...] [--plans PLAN...] [--rounds N] [--json FILE]
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import heap
import plan_models

PLANS = ("none", "every", "sqrt", "auto", "0.5", "0.25")  # numbers: budgets, as a part of the plain model's
QUICK = ("none", "sqrt", "auto", "0.5")
SMALL = ("none", "sqrt", "auto", "0.5", "0.3")
NEVER_WORSE = ("none", "sqrt", "auto")
_NEARLY = 1.01  # two runs of one step differ by so much: ops that may run side by side do so in any order


def main():
    options = parse_options()
    if options.child:
        for found in measure(options.child, options.plans, options.rounds):
            print(json.dumps(found), flush=True)
        return
    results = {}
    for model in options.models:
        rounds = ("--rounds", options.rounds, "--plans", *options.plans)
        lines = heap.run(__file__, "--child", model, *rounds, env={"KERAS_BACKEND": options.backend})
        results[model] = list(map(json.loads, lines))
        print(as_table({model: results[model]}), flush=True)
    print("\n" + as_table(results))
    if options.applications:
        worse = [name for name, plans in results.items() if is_worse(plans)]
        print(f"\nWorse by the plan: {', '.join(worse) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small model, one round")
    parser.add_argument("--small", action="store_true", help="small models of many kinds, for their memory")
    parser.add_argument("--applications", action="store_true", help="keras.applications, for their memory")
    parser.add_argument("--backend", choices=("tensorflow", "jax", "torch"), default="tensorflow")
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="names, as in the table")
    parser.add_argument("--plans", nargs="+", metavar="PLAN", help=f"of {', '.join(PLANS)}")
    parser.add_argument("--rounds", type=int, help="measured steps under each plan (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--child", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    models, plans, rounds = plan_models.MODELS, PLANS, 5
    if options.applications:
        models, plans, rounds = plan_models.applications(), NEVER_WORSE, 1
    elif options.small:
        models, plans = plan_models.SMALL, SMALL
    if options.applications and options.plans:
        parser.error("--applications compares plans of its own; leave --plans out")
    if options.quick:
        models, plans, rounds = [plan_models.SMALLEST], QUICK, 1
    unknown = set(options.models or ()) - {*plan_models.MODELS, *plan_models.SMALL, *models}
    if unknown:
        parser.error(f"there is no model {', '.join(sorted(unknown))}")
    options.models = options.models or list(models)
    options.plans, options.rounds = options.plans or list(plans), options.rounds or rounds
    return options


def measure(name, choices, rounds):
    """Yield what is found of each plan that there is for a model."""
    import keras

    from keras_remat import recompute_all, restore

    records = records_of(keras.backend.backend())
    model, x = plan_models.make(name)
    steps, plans = {}, choose(model, choices, len(keras.tree.flatten(x)[0]))

    def convert(choice):
        restore(model)
        if choice != "none":
            recompute_all(model, strategy=plans[choice])

    for choice in plans:
        convert(choice)
        steps[choice] = records.make_step(model, x)
        steps[choice]()
    counted, peaks, seconds = heap.heap_of_this_process(), {}, {}
    for _ in range(rounds):
        for choice, step in steps.items():
            convert(choice)  # what PyTorch runs is the model as it is
            heap.settle()
            peak, start = counted.watch(), time.perf_counter()
            [float(t) for t in step()]
            seconds.setdefault(choice, []).append(time.perf_counter() - start)
            peaks.setdefault(choice, []).append(peak())
    for choice, found in plans.items():
        convert(choice)
        yield {
            "plan": choice,
            "predicted": found.baseline_bytes if choice == "none" else found.peak_bytes,
            "tensors": records.peak(steps[choice]),
            "heap": int(statistics.median(peaks[choice])),
            "seconds": seconds[choice],
            "work": 0.0 if choice == "none" else found.extra_work,
        }


def records_of(backend):
    """Return the module that makes steps, and knows what they hold, on a backend of Keras."""
    if backend == "jax":
        import jax_records as records
    elif backend == "torch":
        import torch_records as records
    else:
        import records
    return records


def choose(model, choices, batch_size):
    """Return {choice: plan}, without budgets that nothing meets."""
    from keras_remat import BudgetError, plan

    found = {"auto": plan(model, batch_size=batch_size)}
    plain = found["auto"].baseline_bytes
    for choice in choices:
        if choice in ("sqrt", "every"):
            found[choice] = plan(model, strategy=choice, batch_size=batch_size)
        elif choice not in ("none", "auto"):
            try:
                budget = int(float(choice) * plain)
                found[choice] = plan(model, memory_budget=budget, batch_size=batch_size)
            except BudgetError:
                continue
    found["none"] = found["auto"]
    return {choice: found[choice] for choice in choices if choice in found}


def is_worse(plans):
    """True if the plan that is chosen by itself takes more than none, or than "sqrt"."""
    tensors = {found["plan"]: found["tensors"] for found in plans}
    return tensors["auto"] > _NEARLY * min(tensors["none"], tensors["sqrt"])


def as_table(results):
    lines = [
        "| model | plan | predicted | tensors | plain over it | heap | plain over it | work again | time |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for model, plans in results.items():
        plain = next((found for found in plans if found["plan"] == "none"), plans[0])
        lines += [f"| {model} | {' | '.join(_cells(found, plain))} |" for found in plans]
    return "\n".join(lines)


def _cells(found, plain):
    # Steps that ran one after the other are compared with each other: a machine gets faster and slower.
    slower = statistics.median(a / b for a, b in zip(found["seconds"], plain["seconds"]))
    return [
        found["plan"],
        *(f"{found['predicted'] / 1e6:.0f} MB", f"{found['tensors'] / 1e6:.0f} MB"),
        f"{plain['tensors'] / found['tensors']:.2f}x",
        f"{found['heap'] / 1e6:.0f} MB",
        f"{plain['heap'] / found['heap']:.2f}x",
        f"{100 * found['work']:.0f} %",
        f"x {slower:.2f}",
    ]


if __name__ == "__main__":
    main()
