"""The environments of the matrix: a TensorFlow, its Python, and the Kerases tested in it.

A *cell* is one Keras in one environment; `python -m pytest tests --target NAME` tests it. This
table is the only place that says what is supported; nox, the summary and the compatibility page
read it. Old releases are held by what they were built against, the newest by its minor version.
"""

from typing import NamedTuple

TESTS = ("pytest", "pytest-timeout", "hypothesis")
KERAS_2_3 = ("keras==2.3.1", "h5py<3", "protobuf<3.21", "scipy")


class Environment(NamedTuple):
    """One virtual environment."""

    tensorflow: str
    python: str
    targets: tuple
    requirements: tuple = ()

    @property
    def name(self):
        return "tf" + "".join(self.tensorflow.split(".")[:2])


class Cell(NamedTuple):
    """One Keras in one environment."""

    target: str
    environment: Environment

    @property
    def name(self):
        return f"{self.target}-{self.environment.name}"


ENVIRONMENTS = (
    Environment("1.14.0", "3.7", ("keras", "tf.keras"), (*KERAS_2_3, "numpy<1.17")),
    Environment(
        "1.15.5",
        "3.7",
        ("keras", "tf.keras", "tf.keras-eager"),
        (*KERAS_2_3, "numpy<1.19", "bert4keras==0.11.5"),
    ),
    Environment("2.0.4", "3.7", ("keras", "tf.keras"), (*KERAS_2_3, "numpy<1.19")),
    Environment("2.1.0", "3.7", ("keras", "tf.keras"), (*KERAS_2_3, "numpy<1.19")),
    Environment("2.4.4", "3.8", ("tf.keras",), ("protobuf<3.21",)),
    Environment("2.6.5", "3.9", ("tf.keras",), ("keras==2.6.0", "protobuf<3.21")),
    Environment("2.11.1", "3.10", ("tf.keras",), ("numpy<2",)),
    Environment("2.15.1", "3.11", ("tf.keras",)),
    # scikit-learn, matplotlib and tqdm are for the demo.
    Environment(
        "2.21.*",
        "3.13",
        ("tf_keras",),
        ("tf_keras==2.21.*", "scikit-learn", "matplotlib", "tqdm", "pytest-xdist"),
    ),
)
NEWEST = ENVIRONMENTS[-1]

CELLS = tuple(Cell(target, one) for one in ENVIRONMENTS for target in one.targets)

# Every script in examples/ runs in the newest environment, but for these.
EXAMPLE_ENVIRONMENTS = {"keras2_bert4keras": "tf115"}
