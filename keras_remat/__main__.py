"""The command line: what a plan would save, for a model in a file.

python -m keras_remat plan model.keras --batch-size 32 --budget 8GB
"""

import argparse
import os
import sys

from keras_remat.errors import RematError
from keras_remat.loading import load_model
from keras_remat.plans import plan

_FAILED = 2  # as argparse exits with


def main(arguments=None):
    """Run the command line; return the exit status: 2 for input that makes no sense, told on stderr."""
    options = _parser().parse_args(arguments)
    # Nothing is computed: leave the memory of the device, and the screen, to others.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        _plan(options)
    except RematError as error:
        print(f"keras_remat: error: {error}", file=sys.stderr)
        return _FAILED
    return 0


def _plan(options):
    model = load_model(options.model, options.modules)
    found = plan(
        model,
        strategy=options.strategy,
        memory_budget=options.budget,
        batch_size=options.batch_size,
        input_shapes=options.input_shapes,
    )
    print(found)
    if options.plot:
        _written(options.plot, found.plot)
    if options.json:
        _written(options.json, lambda path: _write(path, found.to_json()))


def _written(path, write):
    try:
        write(path)
    except OSError as error:
        raise RematError(
            f"Results are written to files. Received: {path!r} ({error}). Name a file that can be written."
        ) from error


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _parser():
    parser = argparse.ArgumentParser(prog="python -m keras_remat", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True
    add = commands.add_parser("plan", help="plan what to recompute, and show what it saves").add_argument
    add("model", metavar="MODEL", help="a .keras or .h5 file")
    add("--batch-size", type=int, metavar="N", help="samples in a batch (32)")
    add("--budget", metavar="SIZE", help="memory for tensors that depend on the batch, like 8GB")
    add("--strategy", type=_strategy, default="auto", help="auto, sqrt, every, measured or a number (auto)")
    add(
        "--input-shape",
        dest="input_shapes",
        type=_shape,
        action="append",
        metavar="B,...",
        help="shape of an input with its batch dimension, like 32,128; once for each input",
    )
    add(
        "--import", dest="modules", action="append", default=[], metavar="MODULE", help="with your own layers"
    )
    add("--plot", metavar="FILE", help="draw memory over a step, and the blocks")
    add("--json", metavar="FILE", help="write the plan, for Plan.from_json")
    return parser


def _strategy(text):
    return int(text) if text.isdigit() else text


def _shape(text):
    try:
        return tuple(None if size == "None" else int(size) for size in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a shape is like 32,128. Received: {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
