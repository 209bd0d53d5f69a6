"""Convert models that others wrote, and compare a training step with that of the plain model.

Every architecture of `keras.applications` and, where keras-hub is installed, some of its backbones,
with random weights, on each framework that is installed. The same model steps twice from the same
weights, state and seeds, before and after `recompute_all(model)`. Loss, gradients and state must
agree, and what is kept for the backward pass must fall.

    python examples/benchmarks/clients.py [--quick] [--backend NAME...] [--only MODEL...] [--write FILE]
"""

import argparse
import contextlib
import importlib.util
import json
import sys
import time
import traceback
from pathlib import Path

import heap

#: Names, and the largest difference that is let through, relative to the largest loss, gradient or state.
FRAMEWORKS = {"torch": ("PyTorch", 0.0), "jax": ("JAX", 1e-6), "tensorflow": ("TensorFlow", 0.0)}
#: The same in float64, in which a model steps again where it differs by more and rounding may be why.
ROUNDING = 1e-10
BEGIN, END = "<!-- clients: begin -->\n", "<!-- clients: end -->\n"


def main():
    options = parse_options()
    if options.child:
        for name in chosen_names(options):
            print(json.dumps(compare(name, options.child, options.float32)), flush=True)
        return
    results = read(options.json)
    for backend in options.backend:
        for result in run(backend, options):
            results[f"{result['model']} {backend}"] = result
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")
    table = as_table(results.values())
    print("\n" + table)
    if options.write:
        write(options.write, table)
    failed = [key for key, result in results.items() if failure(result)]
    if failed:
        sys.exit("These failed: " + ", ".join(failed))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three of the models")
    parser.add_argument(
        "--backend", nargs="*", metavar="NAME", help=f"of {', '.join(FRAMEWORKS)}; default all"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL", help="names, as in the table")
    parser.add_argument("--float32", action="store_true", help="do not step again in float64")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add to the results in this file")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--child", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.backend is None:
        options.backend = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    if not set(options.backend) <= set(FRAMEWORKS):
        parser.error(f"--backend takes {', '.join(FRAMEWORKS)}: {', '.join(options.backend)}")
    return options


def read(path):
    """Return the results of earlier runs."""
    return json.loads(path.read_text()) if path and path.exists() else {}


def run(backend, options):
    """Yield the results of a process on `backend` that goes through the models."""
    arguments = ["--child", backend, *["--quick"] * options.quick, *["--float32"] * options.float32]
    arguments += ["--only", *options.only] if options.only else []
    environment = {"KERAS_BACKEND": backend, "TF_USE_LEGACY_KERAS": "0"}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # else most of the time goes into compiling
    for line in heap.run(__file__, *arguments, env=environment):
        result = json.loads(line)
        print(f"{backend}: {describe(result)}", flush=True)
        yield result


def chosen_names(options):
    import client_models

    known = client_models.names()
    unknown = sorted(set(options.only) - set(known))
    if unknown:
        sys.exit(f"There is no {', '.join(unknown)}. There are: {', '.join(known)}.")
    wanted = options.only or (client_models.QUICK if options.quick else known)
    return [name for name in known if name in wanted]


def compare(name, backend, only_float32):
    """Let a model step before and after it is converted; return what was found, as plain data."""
    start = time.perf_counter()
    try:
        result = compare_steps(name, backend)
        if differs(result, backend) and backend != "torch" and not only_float32:
            with in_float64(backend):
                result["float64"] = largest_difference(compare_steps(name, backend))
    except Exception as error:
        result = {"error": error_text(error)}
        traceback.print_exc()
    return {"model": name, "backend": backend, **result, "seconds": time.perf_counter() - start}


def compare_steps(name, backend):
    import client_models
    import client_steps
    import keras

    from keras_remat import recompute_all

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    try:
        model, inputs = client_models.make(name)
    except ValueError as error:  # Keras has not all of them on PyTorch
        return {"missing": error_text(error)}
    targets = client_models.targets(model, inputs)
    values = [client_steps.array(v) for v in model.variables]
    counter = heap.heap_of_this_process() if backend == "tensorflow" else None

    def step():
        for variable, value in zip(model.variables, values):
            variable.assign(value)
        keras.utils.set_random_seed(2)
        return client_steps.STEPS[backend](model, inputs, targets, counter)

    try:
        plain = step()
    except Exception as error:  # TensorFlow has not all gradients on a CPU
        return {"missing": error_text(error)}
    recompute_all(model)
    recomputed = step()
    return {
        "parameters": model.count_params(),
        "plain": plain.kept,
        "recomputed": recomputed.kept,
        "loss": difference([plain.loss], [recomputed.loss]),
        "gradients": difference(plain.gradients, recomputed.gradients),
        "state": difference(plain.state, recomputed.state),
    }


@contextlib.contextmanager
def in_float64(backend):
    """Let Keras make models in float64."""
    import keras

    if backend == "jax":
        import jax
        from keras.src.backend.common import dtypes

        jax.config.update("jax_enable_x64", True)
        # On JAX, batch normalization is float32 all the same, unless this says otherwise.
        dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
    keras.config.set_floatx("float64")
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        if backend == "jax":
            jax.config.update("jax_enable_x64", False)
            dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float32"


def differs(result, backend):
    """True if two steps differ by more than is let through."""
    return "missing" not in result and not largest_difference(result) <= FRAMEWORKS[backend][1]


def error_text(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def largest_difference(result):
    return max(result[part] for part in ("loss", "gradients", "state"))


def difference(plain, other):
    """Return the largest difference between arrays, relative to the largest number in them."""
    import numpy as np

    if [x is None for x in plain] != [x is None for x in other]:
        return float("inf")
    pairs = [(np.float64(x), np.float64(y)) for x, y in zip(plain, other) if x is not None and x.size]
    largest = max((np.max(np.abs(x)) for x, _ in pairs), default=0)
    found = max((np.max(np.abs(x - y)) for x, y in pairs), default=0)
    return float(found / largest) if found else 0.0


def failure(result):
    """Say what is wrong with a result; None if nothing is."""
    if "error" in result or "missing" in result:
        return result.get("error")
    if not result.get("float64", 0.0) <= ROUNDING:
        return f"differs by {number(result['float64'])} in float64"
    if "float64" not in result and differs(result, result["backend"]):
        return f"differs by {number(largest_difference(result))}"
    return None if result["recomputed"] < result["plain"] else "keeps no less"


def describe(result):
    if "error" in result or "missing" in result:
        return f"{result['model']}: {result.get('error') or result['missing']}"
    found = failure(result) or "agrees"
    return f"{result['model']}: {memory(result)} MB, {found}, {result['seconds']:.0f} s"


def memory(result):
    plain, recomputed = result["plain"], result["recomputed"]
    return f"{plain / heap.MB:.2f} → {recomputed / heap.MB:.2f} ({plain / recomputed:.1f}x)"


def as_table(results):
    """The results as a Markdown table, a row for each model."""
    rows = {}
    for result in results:
        rows.setdefault(result["model"], {})[result["backend"]] = result
    backends = [name for name in FRAMEWORKS if any(name in row for row in rows.values())]
    heads = [f"{FRAMEWORKS[name][0]}, MB | differs" for name in backends]
    lines = [
        f"| model | parameters | {' | '.join(heads)} |",
        f"| --- | ---: | {' | '.join(['---: | ---:'] * len(backends))} |",
    ]
    for model, row in sorted(rows.items(), key=lambda item: ("keras-hub" in item[0], item[0])):
        parameters = max(result.get("parameters", 0) for result in row.values())
        cells = [cell for name in backends for cell in cells_of(row.get(name))]
        lines.append(f"| {model} | {parameters / 1e6:.1f} M | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cells_of(result):
    if result is None or "missing" in result:
        return ["", ""]
    if "error" in result:
        return ["", "fails"]
    differs = number(largest_difference(result))
    return [memory(result), differs + (f" ({number(result['float64'])})" if "float64" in result else "")]


def number(value):
    return f"{value:.0e}" if value else "0.0"


def write(path, table):
    """Put the table in its place in a page."""
    page = path.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{path} has no place for the table: it goes between {BEGIN}and {END}")
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
