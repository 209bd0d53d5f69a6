"""Packaging. There are no install requirements: the user chooses the framework."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


setup(
    name="keras_remat",
    version=re.search(r'^__version__ = "(.+)"$', read("keras_remat/__init__.py"), re.M).group(1),
    description="Train larger Keras models in the same memory: exact activation recomputation",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["keras_remat", "keras_remat.*"]),
    python_requires=">=3.7",
    extras_require={
        "plots": ["matplotlib"],
        "progress": ["tqdm"],
        "docs": ["sphinx", "myst-parser", "furo"],
        "tests": ["pytest", "pytest-timeout", "hypothesis"],
    },
    classifiers=[
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
