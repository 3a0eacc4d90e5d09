"""Sphinx configuration: Markdown pages by MyST, the API reference from the docstrings.

python -m sphinx -W -b html docs docs/_build/html
"""

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import lgym  # noqa: E402

project = "lgym"
author = "the lgym authors"
copyright = author
version = release = lgym.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"lgym {release}"
html_static_path: list[str] = []
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

default_role = "code"  # single backticks in docstrings
autodoc_inherit_docstrings = False
autoclass_content = "both"  # constructors have the `Args`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # `Attributes` as a field list, like `Args`

SPECIAL = re.compile(r"(`[^`]*`)|([|*])|(?<=\w)(_)(?=\W|$)")
PLURAL = re.compile(r"(`[^`]+`)(?=\w)")
LIST_ITEM = re.compile(r"\s*([-*+]|\d+\.)\s")


before_napoleon: dict[str, list[str]] = {}


def keep_attribute(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Keep the docstring of an attribute, since napoleon takes what stands before a colon for a type."""
    if what in ("attribute", "data", "property"):
        before_napoleon[name] = list(lines)


def format_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn plain-text docstrings into reStructuredText: formulas and tables become literal blocks, and the
    characters `|`, `*` and a final `_` lose their meaning."""
    paragraphs: list[list[str]] = [[]]
    for line in before_napoleon.pop(name, lines):
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    lines[:] = [line for paragraph in paragraphs for line in [*format_paragraph(paragraph), ""]]


def format_paragraph(paragraph: list[str]) -> list[str]:
    """Leave field lists and bullet lists as they are, indent formulas and tables, and escape prose."""
    if not paragraph or paragraph[0].lstrip().startswith((":", "..")):
        return [PLURAL.sub(r"\1\ ", line) for line in paragraph]
    if LIST_ITEM.match(paragraph[0]):
        return [escape(line) for line in paragraph]
    indented = any(line.startswith(" ") for line in paragraph)
    formula = " = " in paragraph[0] and not paragraph[-1].rstrip().endswith((".", ":"))
    if indented or formula:
        return ["::", "", *("    " + line for line in paragraph)]
    return [escape(line) for line in paragraph]


def escape(line: str) -> str:
    """Escape reStructuredText's special characters outside backticks."""
    first = LIST_ITEM.match(line)
    start = first.end() if first else 0
    escaped = SPECIAL.sub(lambda match: match[1] or "\\" + match[0], line[start:])
    return line[:start] + PLURAL.sub(r"\1\ ", escaped)


def setup(app: Sphinx) -> None:
    """Run around napoleon, which makes field lists of `Args`, `Returns` and `Raises`."""
    app.connect("autodoc-process-docstring", keep_attribute, priority=100)
    app.connect("autodoc-process-docstring", format_docstring, priority=900)
