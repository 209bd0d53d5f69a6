"""The table of docs/compatibility.md, made from the JUnit files that the matrix leaves.

A row is a test module, a column a cell. The table knows no counts, so it changes only when what is
supported changes. `--write` puts it into the page; `--check` fails where the page says otherwise.
"""

import argparse
import difflib
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

from cells import CELLS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = ROOT / ".envs" / "results"
BEGIN = "<!-- from the matrix: begin -->\n"
END = "<!-- from the matrix: end -->\n"

KERAS_NAMES = {
    "keras": "Keras 2.3.1",
    "tf.keras": "tf.keras",
    "tf.keras-eager": "tf.keras, v2 behavior",
    "tf_keras": "tf_keras",
    "keras3-tensorflow": "Keras 3 on TensorFlow",
    "keras3-jax": "Keras 3 on JAX",
    "keras3-torch": "Keras 3 on PyTorch",
}
SHORT = {"keras": "Keras", "tensorflow": "TF"}
# These modules test the project, or what is planned and measured, not what a Keras can do.
NOT_FEATURES = {
    *("docs", "layout", "mutation"),
    *("batches", "callbacks", "command", "costs", "measured", "pictures", "planning", "plans", "progress"),
    "report",
}


def read_cases(path):
    """(module, outcome, reason) of each test of a JUnit file."""
    for case in ElementTree.parse(path).iter("testcase"):
        parts = case.get("classname", "").split(".")
        module = next((part[5:] for part in parts if part.startswith("test_")), parts[-1])
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield module, "failed", None
        elif skipped is None:
            yield module, "passed", None
        else:
            outcome = "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"
            yield module, outcome, " ".join(skipped.get("message", "").split()) or "no reason given"


def read_cell(path):
    """For each module, what its tests came to: "passed", "failed" or the reason of a limit."""
    outcomes = defaultdict(set)
    for module, outcome, reason in read_cases(path):
        outcomes[module].add(reason or outcome)
    return outcomes


def mark(outcomes, notes):
    """One field of the table: ✓, — or ✗, with the numbers of the notes on its limits."""
    if not outcomes:
        return ""
    if "failed" in outcomes:
        return "✗"
    reasons = sorted(outcomes - {"passed"})
    numbers = sorted(notes.setdefault(reason, len(notes) + 1) for reason in reasons)
    symbol = "✓" if "passed" in outcomes else "—"
    return symbol + "".join(f" [^limit-{number}]" for number in numbers)


def make_table(results):
    """The table and its notes in Markdown, from {cell: {module: outcomes}}."""
    modules = sorted({module for cell in results.values() for module in cell} - NOT_FEATURES)
    notes = {}
    lines = ["| | " + " | ".join(map(heading, results)) + " |", "| --- |" + " :-: |" * len(results)]
    for module in modules:
        fields = [mark(results[cell].get(module, set()), notes) for cell in results]
        lines.append(f"| {module.replace('_', ' ')} | " + " | ".join(fields) + " |")
    lines += ["", *(f"[^limit-{number}]: {note}" for note, number in notes.items())]
    return "\n".join(lines).rstrip() + "\n"


def heading(cell):
    pins = dict(pin.split("==") for pin in cell.environment.requirements if "==" in pin)
    wanted = ("keras",) if cell.target.startswith("keras3") else ("tensorflow",)
    versions = [f"{SHORT[name]} {'.'.join(pins[name].split('.')[:2])}" for name in wanted]
    return "<br>".join([KERAS_NAMES[cell.target], *versions, f"Python {cell.environment.python}"])


def new_page(page):
    """The page with the table of the last results in the place of its own."""
    missing = [cell.name for cell in CELLS if not (RESULTS / f"{cell.name}.xml").exists()]
    if missing:
        raise SystemExit(f"no results of {', '.join(missing)}: run `make matrix` first")
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE} has no place for the table: it goes between {BEGIN}and {END}")
    table = make_table({cell: read_cell(RESULTS / f"{cell.name}.xml") for cell in CELLS})
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true")
    choice.add_argument("--check", action="store_true")
    arguments = parser.parse_args()

    old = PAGE.read_text("utf-8")
    new = new_page(old)
    if arguments.write:
        PAGE.write_text(new, "utf-8")
    elif new != old:
        names = "docs/compatibility.md", "as the matrix found it"
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(1), new.splitlines(1), *names))
        raise SystemExit("docs/compatibility.md is out of date: `make compatibility` after a run")


if __name__ == "__main__":
    main()
