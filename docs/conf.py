"""The site: `pip install -e '.[docs]' && sphinx-build -q -W --keep-going docs outputs/site`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import reference
from sphinx.application import Sphinx

from ablate import __version__

project, author, release = "ablate", "ablate's authors", __version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"ablate {__version__}"
exclude_patterns = ["_build", "outputs"]
# Docstrings are plain text with `code`.
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
nb_execution_mode = "auto"  # notebooks without outputs run when the site is built
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
myst_heading_anchors = 3

reference.write(Path(__file__).parent / "options")
reference.write_systems(Path(__file__).parent / "systems")


def setup(app: Sphinx) -> None:
    app.connect("source-read", reference.link_systems)
