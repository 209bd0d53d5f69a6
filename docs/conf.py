"""Configuration of Sphinx: pages in Markdown, the reference from the docstrings."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import keras_remat

project = "keras_remat"
author = "the keras_remat authors"
copyright = "2026, " + author
version = release = keras_remat.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "requirements.txt"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = f"keras_remat {release}"
