"""The package keeps the shape that docs/how-it-works.md draws: imports point one way.

Read from the syntax tree, so an import inside a function counts as well. Each check is also run
on a small package that breaks it, because a check that cannot fail shows nothing.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "keras_remat"

# From the top: a part imports from its own line and from those below it, never from above.
LINES = (
    (
        "__init__",
        "__main__",
        "batches",
        "callbacks",
        "layers",
        "decorator",
        "conversion",
        "convert",
        "converted",
        "loading",
        "matching",
        "measured",
        "plans",
        "report",
    ),
    ("engine", "planning", "graph"),
    ("pure",),
    ("families",),
    ("backends", "replay"),
    ("errors",),
)
LINE_OF = {part: number for number, parts in enumerate(LINES) for part in parts}

# Alternatives stand side by side: one that needs another has put its code in the wrong place.
ALTERNATIVES = {
    "families": ("keras2", "tf_keras", "keras3"),
    "backends": ("tensorflow", "jax", "torch"),
}

FRAMEWORKS = {"tensorflow", "keras", "tf_keras", "jax", "torch"}
PURE = re.compile(r"(errors|planning(\.\w+)?)$")
KNOW_PRIVATE_NAMES = {"families", "backends", "replay"}
PRIVATE_MODULE = re.compile(
    r"tensorflow\.(python|core|compiler)\b"
    r"|(keras|tf_keras)\.(src|engine|backend\.\w+_backend)\b"
    r"|(tensorflow|keras|tf_keras)(\.\w+)*\._"
)


def find_violations(package):
    """Every import of the package that breaks a rule, as `file:line: rule`."""
    found, arrows = [], {}
    for path in sorted(package.rglob("*.py")):
        module = dotted_name(path.relative_to(package))
        part = module.split(".")[0]
        if part not in LINE_OF:
            found.append(f"{path.relative_to(package)}: has no place in LINES")
            continue
        for line, target in read_imports(path, package):
            where = f"{path.relative_to(package)}:{line}: "
            if target.split(".")[0] == package.name:
                inner = resolve(target, package)
                found += [where + rule for rule in broken_rules(module, inner)]
                if inner.split(".")[0] != part:
                    arrows.setdefault(part, set()).add(inner.split(".")[0])
            elif target.split(".")[0] in FRAMEWORKS:
                if PURE.match(module):
                    found.append(where + "imports a framework: " + target)
                if PRIVATE_MODULE.match(target) and part not in KNOW_PRIVATE_NAMES:
                    found.append(where + "uses a private module: " + target)
    return found + [f"{part}: is part of a circle" for part in sorted(circle(arrows))]


def broken_rules(module, target):
    """The rules that an import of keras_remat.`target` by keras_remat.`module` breaks."""
    part, other = module.split(".")[0], target.split(".")[0]
    if other not in LINE_OF:
        return [f"imports {target}, which has no place in LINES"]
    rules = []
    if LINE_OF[other] < LINE_OF[part]:
        rules.append("imports upwards: " + target)
    if part == other and part in ALTERNATIVES:
        mine, theirs = (alternative(name) for name in (module, target))
        if theirs and mine != theirs and module != part:
            rules.append("imports sideways: " + target)
    return rules


def alternative(module):
    """Which family or backend a module belongs to; None for what they share."""
    part, _, name = module.partition(".")
    for one in ALTERNATIVES[part]:
        if re.match(one + r"(_|\.|$)", name):
            return one
    return None


def read_imports(path, package):
    """(line, dotted name) of each import statement and `import_module` of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = (package.name, *path.relative_to(package).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else ()
            names = base + ((node.module,) if node.module else ())
            for alias in node.names:
                yield node.lineno, ".".join((*names, alias.name))
        elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                try:
                    name = ast.literal_eval(argument)
                except ValueError:  # not a constant, so nothing can be said about it here
                    continue
                prefix = ".".join(inside) if name.startswith(".") else ""
                yield node.lineno, prefix + name


def called_name(call):
    return getattr(call.func, "attr", getattr(call.func, "id", None))


def dotted_name(path):
    """`families/keras2.py` as "families.keras2"; a package's own file has the package's name."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def resolve(target, package):
    """The module that `keras_remat.a.b.name` is in, without the package's name."""
    parts = target.split(".")[1:]
    while parts:
        path = package.joinpath(*parts)
        if path.is_dir() or path.with_suffix(".py").exists():
            return ".".join(parts)
        parts.pop()
    return "__init__"


def circle(arrows):
    """The parts that import each other in a circle, if there are any."""
    left = dict(arrows)
    while True:
        free = [part for part in left if not left[part] & set(left)]
        if not free:
            return set(left)
        for part in free:
            del left[part]


def loaded_frameworks(statement, folder):
    """The frameworks that a fresh interpreter has loaded after `statement`."""
    code = f"import sys; {statement}; print(*({FRAMEWORKS!r} & set(sys.modules)))"
    output = subprocess.check_output([sys.executable, "-c", code], cwd=str(folder))
    return set(output.decode().split())


def test_imports_point_one_way():
    assert find_violations(PACKAGE) == []


@pytest.mark.parametrize(
    "file, source, rule",
    [
        ("graph.py", "from keras_remat.convert import restore", "imports upwards"),
        ("graph.py", "from .convert import restore", "imports upwards"),
        ("graph.py", "from keras_remat import Recompute", "imports upwards: __init__"),
        ("replay/a.py", "def f():\n    from .. import engine", "imports upwards: engine"),
        ("families/keras2.py", "from . import tf_keras", "imports sideways"),
        ("families/base.py", "from .keras2_graph import x", "imports sideways"),
        ("families/base.py", "importlib.import_module('.tf_keras', __package__)", "sideways"),
        ("engine.py", "from tensorflow.python.ops import array_ops", "private module"),
        ("layers.py", "import keras.backend.tensorflow_backend", "private module"),
        ("planning/choose.py", "def f():\n    import tensorflow", "imports a framework"),
        ("helpers.py", "", "no place"),
        ("engine.py", "from . import graph", "circle"),
    ],
)
def test_the_check_of_imports_can_fail(tmp_path, file, source, rule):
    package = tmp_path / "keras_remat"
    for name in ("families", "replay", "planning"):
        (package / name).mkdir(parents=True)
    for name in ("engine", "convert", "families/tf_keras", "families/keras2_graph"):
        (package / (name + ".py")).write_text("")
    (package / "graph.py").write_text("from . import engine")
    (package / file).write_text(source)
    violations = find_violations(package)
    assert violations and all(file[:-3].split("/")[0] in one for one in violations[:1])
    assert any(rule in one for one in violations)


def test_importing_loads_no_framework():
    assert loaded_frameworks("import keras_remat", PACKAGE.parent) == set()


def test_the_check_of_importing_can_fail(tmp_path):
    (tmp_path / "tensorflow.py").write_text("")
    (tmp_path / "keras_remat.py").write_text("import tensorflow")
    assert loaded_frameworks("import keras_remat", tmp_path) == {"tensorflow"}
