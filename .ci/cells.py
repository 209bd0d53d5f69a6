"""The environments of the matrix: a TensorFlow, its Python, and the Kerases tested in it.

A *cell* is one Keras in one environment; `python -m pytest tests --target NAME` tests it. This
table is the only place that says what is supported; nox, the summary and the compatibility page
read it. Old releases are held by what they were built against, the newest by its minor version.
"""

from typing import NamedTuple

TESTS = ("pytest", "pytest-timeout", "hypothesis")
KERAS_2_3 = ("keras==2.3.1", "h5py<3", "protobuf<3.21", "scipy")


class Environment(NamedTuple):
    """One virtual environment; `by_pip` is what its own pip installs last, where uv finds other builds."""

    name: str
    python: str
    targets: tuple
    requirements: tuple
    by_pip: tuple = ()


def tensorflow(version, python, targets, requirements=()):
    """The environment of a Keras 2, or several, on one TensorFlow."""
    name = "tf" + "".join(version.split(".")[:2])
    return Environment(name, python, targets, (f"tensorflow=={version}", *requirements))


class Cell(NamedTuple):
    """One Keras in one environment; `part` as of `pytest --part`, None to run all tests."""

    target: str
    environment: Environment
    part: str = None

    @property
    def name(self):
        return f"{self.target}-{self.environment.name}"


ENVIRONMENTS = (
    tensorflow("1.14.0", "3.7", ("keras", "tf.keras"), (*KERAS_2_3, "numpy<1.17")),
    tensorflow(
        "1.15.5",
        "3.7",
        ("keras", "tf.keras", "tf.keras-eager"),
        (*KERAS_2_3, "numpy<1.19", "bert4keras==0.11.5"),
    ),
    tensorflow("2.0.4", "3.7", ("keras", "tf.keras"), (*KERAS_2_3, "numpy<1.19")),
    tensorflow("2.1.0", "3.7", ("keras", "tf.keras"), (*KERAS_2_3, "numpy<1.19")),
    tensorflow("2.4.4", "3.8", ("tf.keras",), ("protobuf<3.21",)),
    tensorflow("2.6.5", "3.9", ("tf.keras",), ("keras==2.6.0", "protobuf<3.21")),
    tensorflow("2.11.1", "3.10", ("tf.keras",), ("numpy<2",)),
    tensorflow("2.15.1", "3.11", ("tf.keras",)),
    Environment(
        "keras33",
        "3.11",
        ("keras3-tensorflow",),
        ("keras==3.3.3", "tensorflow==2.16.2", "numpy<2"),
    ),
    # PyTorch for the CPU is a file that only pip finds.
    Environment(
        "backends",
        "3.11",
        ("keras3-torch",),
        ("keras==3.15.*", "tensorflow==2.21.*", "jax", "pip"),
        ("torch==2.13.0",),
    ),
    # scikit-learn, matplotlib and tqdm are for the demo.
    Environment(
        "newest",
        "3.13",
        ("keras3-tensorflow", "keras3-jax", "tf_keras"),
        (
            "keras==3.15.*",
            "tensorflow==2.21.*",
            "jax",
            "tf_keras==2.21.*",
            "scikit-learn",
            "matplotlib",
            "tqdm",
            "pytest-xdist",
        ),
    ),
)
NEWEST = ENVIRONMENTS[-1]

# The oldest and the newest version of each Keras run all tests. For the time those between them, which
# differ from these in little, take turns: each runs a third of every file.
PARTS = {
    "keras-tf115": "1/3",
    "keras-tf20": "2/3",
    "tf.keras-tf115": "3/3",
    "tf.keras-eager-tf115": "1/3",
    "tf.keras-tf20": "2/3",
    "tf.keras-tf21": "3/3",
    "tf.keras-tf24": "1/3",
    "tf.keras-tf26": "2/3",
    "tf.keras-tf211": "3/3",
    "keras3-tensorflow-keras33": "1/3",
}

CELLS = tuple(
    Cell(target, one, PARTS.get(f"{target}-{one.name}")) for one in ENVIRONMENTS for target in one.targets
)
# What `make test` runs.
FIRST = next(cell for cell in CELLS if cell.environment is NEWEST)

# Every script in examples/ runs in the newest environment, but for these.
EXAMPLE_ENVIRONMENTS = {"keras2_bert4keras": "tf115", "compare_backends": "backends"}
