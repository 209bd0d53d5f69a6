"""Keras 3's own recomputation beside ours, on TensorFlow, JAX and PyTorch: what runs, and what it keeps.

One model in four variants: plain; its blocks made in `keras.RematScope`; their calls in `keras.remat`;
and `Recompute(block)`. Every backend has a process of its own. Two kinds of blocks: Dense layers with
LayerNormalization, and Dense layers with BatchNormalization and Dropout, where a second run is another
one unless somebody takes care.

    python examples/compare_backends.py [--quick] [--backends tensorflow jax torch]
"""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "benchmarks"))
import heap

BACKENDS = ("tensorflow", "jax", "torch")
KINDS = {
    "steady": "Dense, GELU, LayerNormalization",
    "noisy": "Dense, GELU, BatchNormalization, Dropout",
}
HEADER = ("backend", "variant", "runs", "gradients", "statistics", "kept", "peak", "step")


def main():
    options = parse_options()
    if options.child:
        from compare_steps import measure  # only a child loads a framework

        for result in measure(options.quick, heap_of_child(options.child)):
            print(json.dumps(result), flush=True)
        return
    results = {backend: collect(backend, options.quick) for backend in options.backends}
    print(as_table(results))
    print("\n" + "\n".join(legend(results)))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a small model and few steps: does everything run?"
    )
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--child", choices=BACKENDS, help=argparse.SUPPRESS)
    return parser.parse_args()


def heap_of_child(backend):
    """What to ask for sizes; None where malloc cannot be counted and there is no TensorFlow to ask."""
    return heap.heap_of_this_process() if heap.compiler() or backend == "tensorflow" else None


def collect(backend, quick):
    """Run one backend in a process of its own; return its results, or why there are none."""
    missing = [name for name in ("keras", backend) if find_spec(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    print(f"{backend} ...", file=sys.stderr, flush=True)
    # Threads that wait by spinning take the other core from those that work.
    environment = {"KERAS_BACKEND": backend, "TF_USE_LEGACY_KERAS": "0", "OMP_WAIT_POLICY": "passive"}
    arguments = ["--child", backend, *(["--quick"] if quick else [])]
    try:
        return [json.loads(line) for line in heap.run(__file__, *arguments, env=environment)]
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]


def as_table(results):
    """All results as one Markdown table, with a row above each kind of blocks."""
    rows = [HEADER]
    errors = error_numbers(results)
    for kind, title in KINDS.items():
        rows.append((f"*{title}*",))
        for backend, found in results.items():
            if isinstance(found, str):
                rows.append((backend, found))
                continue
            mine = [r for r in found if r.get("kind") == kind]
            rows += [as_row(backend, r, mine[0], errors) for r in mine]
    return aligned(rows)


def as_row(backend, result, plain, errors):
    if "error" in result:
        return (backend, result["variant"], f"no [{errors[result['error']]}]", "", "", "", "", "")
    is_plain = result is plain
    step = f"{result['seconds']:.3f} s" if is_plain else f"x {result['seconds'] / plain['seconds']:.2f}"
    differences = [as_difference(result[key]) for key in ("gradients", "statistics")]
    sizes = [as_size(result[key]) for key in ("kept", "peak")]
    return (backend, result["variant"], "yes", *(("", "") if is_plain else differences), *sizes, step)


def as_difference(value):
    return "" if value is None else f"{value:.1g}"


def as_size(size):
    return "" if size is None else f"{size / heap.MB:.1f} MB"


def aligned(rows):
    """Pad the cells of a Markdown table; the last cell of a short row may be longer than its column."""
    widths = [max(len(row[i]) for row in rows if len(row) == len(HEADER)) for i in range(len(HEADER))]
    rule = tuple("-" * w if i < 3 else "-" * (w - 1) + ":" for i, w in enumerate(widths))
    return "\n".join(f"| {' | '.join(padded(row, widths))} |" for row in [rows[0], rule, *rows[1:]])


def padded(row, widths):
    if len(row) < len(widths):
        used = sum(widths[: len(row) - 1])
        widths = [*widths[: len(row) - 1], sum(widths) - used + 3 * (len(widths) - len(row))]
    return [cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]


def error_numbers(results):
    """Number the errors, each text once."""
    found = [r["error"] for rs in results.values() if not isinstance(rs, str) for r in rs if "error" in r]
    return {text: number for number, text in enumerate(dict.fromkeys(found), 1)}


def legend(results):
    """The errors, what was measured, and with what."""
    yield from (f"[{number}] {shortened(text)}" for text, number in error_numbers(results).items())
    yield "Gradients, statistics: largest difference from the plain model after one step, relative."
    yield "Kept: bytes between forward and backward. Peak: heap of a compiled step above what was in use."
    measured = [r for found in results.values() if not isinstance(found, str) for r in found]
    for kind, title in KINDS.items():
        planned = [r for r in measured if r.get("kind") == kind and r.get("temporary")]
        if planned:
            sizes = ", ".join(f"{r['variant']} {as_size(r['temporary'])}" for r in planned)
            yield f"Buffers that XLA plans on JAX, {title.split(', ')[2]}: {sizes}."
    yield from (r["environment"] for r in measured if "environment" in r)


def shortened(text, width=95):
    return text if len(text) <= width else text[: width - 4] + " ..."


if __name__ == "__main__":
    main()
