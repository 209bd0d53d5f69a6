"""Every check of the project as a nox session; `make` has short names for the common ones.

Sessions named after an environment only install. Cells, examples and the mutation check have no
environment of their own: they require one of those, so that three Kerases share one TensorFlow.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import nox
from python_discovery import get_interpreter

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cells import CELLS, ENVIRONMENTS, EXAMPLE_ENVIRONMENTS, FIRST, NEWEST, TESTS, Environment

ROOT = Path(__file__).resolve().parent.parent
ENVS = ROOT / ".envs"
CI = bool(os.environ.get("CI"))

# pyenv's shims answer only for the versions that are switched on; the interpreters always do.
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
os.environ["PATH"] = os.pathsep.join([*map(str, sorted(PYENV.glob("versions/*/bin"))), os.environ["PATH"]])

nox.needs_version = ">=2026.10"  # the first with requires= and --parallel together
nox.options.envdir = ENVS
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True
nox.options.download_python = "never" if CI else "auto"

ON_CPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
# For the demo on PyTorch: what it needs, and no other framework. PyTorch is that of the tests.
TORCH = Environment(
    name="torch",
    python="3.11",
    targets=(),
    requirements=("keras==3.15.*", "scikit-learn", "matplotlib", "tqdm", "pip"),
    by_pip=next(one for one in ENVIRONMENTS if one.name == "backends").by_pip,
)
PURE = (ROOT / "keras_remat" / "errors.py", *sorted((ROOT / "keras_remat" / "planning").glob("*.py")))


def newest_python():
    """The Python of the newest environment; outside CI any other one that its TensorFlow has."""
    found = CI or get_interpreter(NEWEST.python)
    return NEWEST.python if found else ">=3.10,<3.14"


def add(name, function, *, python=False, tags=(), requires=()):
    """Register `function` as a session; without `python` it has no environment of its own."""
    nox.session(function, name=name, python=python, tags=tags, requires=requires, allow_parallel=True)


def run_python(session, environment, *args, **env):
    """Run Python of an environment in the root of the project."""
    session.chdir(ROOT)
    python = ENVS / environment / "bin" / "python"
    # Environments are shared by many processes, so what one has compiled is kept for all.
    env = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", **env}
    session.run(str(python), *args, env=env, external=True)


def add_environment(environment):
    def install(session):
        session.install(*environment.requirements, *TESTS)
        if environment.by_pip:
            session.run("python", "-m", "pip", "install", "--quiet", *environment.by_pip)

    python = newest_python() if environment is NEWEST else environment.python
    add(environment.name, install, python=python)


def add_cell(cell):
    def test(session):
        junit = ENVS / "results" / f"{cell.name}.xml"
        options = ("--target", cell.target, f"--junitxml={junit}")
        if cell is FIRST:  # it runs alone
            options += ("-n", "2", "--dist", "loadfile")
        if cell.part and not os.environ.get("WHOLE"):
            options += ("--part", cell.part)
        args = ("-m", "pytest", "tests", *options, *session.posargs)
        run_python(session, cell.environment.name, *args, **ON_CPU)

    tags = ["test"] if cell is FIRST else ["rest"]
    add(cell.name, test, tags=tags, requires=[cell.environment.name])


def add_script(name, path, environment, *args, tags=(), **env):
    def run(session):
        run_python(session, environment, path, *args, *session.posargs, **env)

    add(name, run, tags=tags, requires=[environment])


def example_scripts():
    """The files of examples/ that are no part of another one."""
    files = sorted((ROOT / "examples").rglob("*.py"))
    pattern = re.compile(r"^\s*(?:from|import) (\w+)", re.M)
    imported = {name for file in files for name in pattern.findall(file.read_text("utf-8"))}
    # The models of others need packages that no environment has.
    return [file for file in files if file.stem not in imported and file.stem != "clients"]


def lint(session):
    """Style, formatting, and the types of the modules that need no framework."""
    session.install("ruff==0.17.*", "mypy==2.4.*", "numpy")
    session.chdir(ROOT)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy", *map(str, PURE))


def reformat(session):
    session.install("ruff==0.17.*")
    session.chdir(ROOT)
    session.run("ruff", "check", "--fix")
    session.run("ruff", "format")


def docs(session):
    """The pages, warnings as errors. No framework here: the package imports without one."""
    session.install("--requirement", str(ROOT / "docs" / "requirements.txt"))
    session.chdir(ROOT)
    session.run("sphinx-build", "-W", "--keep-going", "-q", "docs", str(ENVS / "html"))


def package(session):
    """What pip installs: the package alone, importable on the oldest Python without a framework."""
    source = Path(session.create_tmp())
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "keras_remat", source / "keras_remat", dirs_exist_ok=True)
    session.install("--reinstall", "--refresh-package", "keras_remat", str(source))
    session.chdir(ENVS)
    session.run("python", "-c", "import keras_remat; print(keras_remat.__version__)")


for environment in (*ENVIRONMENTS, TORCH):
    add_environment(environment)
for cell in CELLS:
    add_cell(cell)

add("lint", lint, python=newest_python(), tags=["rest"])
add("format", reformat, python=newest_python())
add("docs", docs, python=newest_python(), tags=["rest"])
add("package", package, python=ENVIRONMENTS[0].python, tags=["rest"])
add_script("mutation", "tests/mutation.py", NEWEST.name, tags=["rest"], **ON_CPU)

for file in example_scripts():
    where = EXAMPLE_ENVIRONMENTS.get(file.stem, NEWEST.name)
    name = f"example-{file.stem}"
    add_script(name, str(file), where, "--quick", tags=["rest"], **ON_CPU)
for backend, where in (("jax", NEWEST.name), ("torch", TORCH.name)):
    picture = str(ENVS / "results" / f"demo-{backend}.png")
    options = ("--backend", backend, "--quick", "--picture", picture)
    add_script(f"example-demo-{backend}", "examples/demo.py", where, *options, tags=["rest"])
add_script("demo", "examples/demo.py", NEWEST.name)
add_script("demo-torch", "examples/demo.py", TORCH.name, "--backend", "torch")
add_script("bench", "examples/benchmarks/block_memory.py", NEWEST.name)
