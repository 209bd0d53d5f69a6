"""Train two models on real data, plain and recomputed: less memory, the same loss.

A small GPT learns the source text of Python's standard library, a ResNet scikit-learn's digits.
Each trains twice, in processes of their own under an exact heap counter, on the backend of Keras
that you name. At the end there is one table, and a picture of memory over one training step.

    python examples/demo.py [--backend tensorflow|jax|torch] [--quick] [--steps N] [--picture demo.png]
"""

import argparse
import json
import os
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "benchmarks"))
import heap

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
TASKS = ("gpt", "digits")
VARIANTS = ("plain", "recomputed")


def main():
    options = parse_options()
    if options.child:
        from demo_training import train  # only the trainings load Keras

        counted = heap.heap_of_this_process()
        train(*options.child, options.steps, counted, lambda message: print(json.dumps(message)))
        return
    start = time.perf_counter()
    backend = BACKENDS[options.backend]
    print(
        "Training a GPT on Python's standard library and a ResNet on digits, "
        f"{options.steps} steps each, plain and recomputed, on {backend}."
    )
    results = train_all(options.backend, options.steps)
    print("\n" + as_table(results, backend))
    print("\nPeak memory of a training step above weights, optimizer state and data.")
    print(f"Keras {version('keras')} on {backend} {version(options.backend)}, {os.cpu_count()} cores.")
    if not heap.compiler():
        print("There is no C compiler: sizes are what TensorFlow's allocator says, 5 % off or so.")
    draw(results, backend, options.picture)
    agreed = [report_agreement(results[task]) for task in TASKS]
    print(f"Took {time.perf_counter() - start:.0f} s.")
    if not all(agreed):
        sys.exit("The losses of plain and recomputed training differ.")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend",
        choices=list(BACKENDS),
        default=os.environ.get("KERAS_BACKEND", "tensorflow"),
        help="of Keras (default: KERAS_BACKEND, or tensorflow)",
    )
    parser.add_argument("--quick", action="store_true", help="6 steps: is everything in place?")
    parser.add_argument("--steps", type=int, help="training steps of each run (default 20)")
    parser.add_argument("--picture", type=Path, default=Path("demo.png"), metavar="FILE")
    parser.add_argument("--child", nargs=2, metavar=("TASK", "VARIANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.steps = options.steps or (6 if options.quick else 20)
    if options.steps < 5:
        parser.error(f"--steps must be at least 5, for warm steps to measure: {options.steps}")
    if options.backend not in BACKENDS:  # argparse does not check defaults
        parser.error(f"KERAS_BACKEND must be one of {', '.join(BACKENDS)}. Received: {options.backend}")
    missing = [name for name in ("keras", options.backend) if find_spec(name) is None]
    if missing:
        parser.error(
            f"the demo on {BACKENDS[options.backend]} needs {missing[0]}, which is not installed here"
        )
    if options.backend != "tensorflow" and not heap.compiler():
        parser.error(f"to count memory on {BACKENDS[options.backend]}, the demo needs glibc and a C compiler")
    return options


def train_all(backend, steps):
    """Return results[task][variant], with a progress bar on the way."""
    environment = {"KERAS_BACKEND": backend}
    results = {}
    with progress_bar(total=len(TASKS) * len(VARIANTS) * steps) as bar:
        for task in TASKS:
            results[task] = {}
            for variant in VARIANTS:
                bar.set_description(f"{task:>6}, {variant:<10}")
                arguments = ["--child", task, variant, "--steps", steps]
                for line in heap.run(__file__, *arguments, env=environment):
                    message = json.loads(line)
                    if "loss" in message:
                        bar.set_postfix(loss=f"{message['loss']:.3f}", refresh=False)
                        bar.update()
                    else:
                        results[task][variant] = message
    return results


def progress_bar(total):
    try:
        from tqdm import tqdm
    except ImportError:
        return PlainProgress(total)
    return tqdm(total=total, unit="step", mininterval=0.5)


class PlainProgress:
    """What we need of tqdm, for when it is not installed: a line for each run."""

    def __init__(self, total):
        self.done, self.total = 0, total

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def set_description(self, text):
        print(f"{text} (step {self.done} of {self.total})", flush=True)

    def set_postfix(self, **values):
        pass

    def update(self):
        self.done += 1


def as_table(results, backend):
    """One Markdown table of all runs."""
    lines = [
        "| backend | model and data | training | peak memory | step time | loss, last 5 steps | held out |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for variants in results.values():
        plain = variants["plain"]
        for variant, result in variants.items():
            memory = f"{result['peak_bytes'] / heap.MB:.0f} MB"
            step = f"{result['step_seconds']:.2f} s"
            if variant != "plain":
                memory += f" ({plain['peak_bytes'] / result['peak_bytes']:.1f}x less)"
                step += f" (x {result['step_seconds'] / plain['step_seconds']:.2f})"
            loss = sum(result["losses"][-5:]) / 5
            cells = [backend, result["title"], variant, memory, step]
            cells += [f"{loss:.6f}", f"{result['held_out_loss']:.6f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report_agreement(variants):
    """Say how far the losses of the two runs are apart; True when they agree."""
    plain, recomputed = (
        [*variants[variant]["losses"], variants[variant]["held_out_loss"]] for variant in VARIANTS
    )
    difference = max(abs(a - b) for a, b in zip(plain, recomputed))
    print(f"{variants['plain']['title']}: largest difference of a loss {difference:.1g}")
    return difference <= 1e-4 * plain[0]


def draw(results, backend, path):
    """Draw the heap over one training step, a panel for each model."""
    try:
        import matplotlib
    except ImportError:
        print("No picture: matplotlib is not installed.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = {"plain": "#b0562f", "recomputed": "#2f6db0"}
    figure, panels = pyplot.subplots(1, len(results), figsize=(10, 3.8), layout="constrained")
    for panel, variants in zip(panels, results.values()):
        for variant, result in variants.items():
            times, sizes = zip(*result["points"])
            megabytes = [size / heap.MB for size in sizes]
            label = f"{variant}: {result['peak_bytes'] / heap.MB:.0f} MB"
            panel.fill_between(times, megabytes, step="post", color=colors[variant], alpha=0.25, linewidth=0)
            panel.step(times, megabytes, where="post", color=colors[variant], linewidth=1, label=label)
        panel.set(title=f"{variants['plain']['title']}, {backend}", xlabel="time in one training step, s")
        panel.set_ylim(0, 1.3 * panel.get_ylim()[1])  # room for the legend
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, loc="upper right")
    panels[0].set_ylabel("heap above the resident, MB")
    figure.savefig(path, dpi=150)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main()
