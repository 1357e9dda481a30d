"""Settings of the documentation: Sphinx with MyST pages, the furo theme and the API from docstrings."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orca import __version__

project = "Orca"
author = "the Orca authors"
copyright = "the Orca authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
python_maximum_signature_line_length = 100

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"Orca {release}"
html_static_path = ["_static"]
html_css_files = ["orca.css"]
