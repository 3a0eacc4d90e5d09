"""Every import of the package is a declared dependency: what another package happens to bring may go with its
next version."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import lgym

ROOT = Path(lgym.__file__).parents[1]


def imported() -> set[str]:
    """Top-level names of all imports in lgym/, inside functions too, without Python's own and lgym."""
    names = set()
    for path in (ROOT / "lgym").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module).split(".")[0])
    return names - sys.stdlib_module_names - {"lgym"}


def declared() -> set[str]:
    """Distributions of pyproject.toml, those of the extras that are no tools of development included."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *(line for name in extras.keys() - {"dev", "docs"} for line in extras[name]),
    ]
    return {normalized(re.split(r"[\[<>=!~; ]", line)[0]) for line in requirements}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_import_is_declared():
    """Of a name that several distributions bring, one is enough; one that is not installed is called as it is
    imported."""
    known, distributions = declared(), packages_distributions()
    missing = {n for n in imported() if not known & set(map(normalized, distributions.get(n, [n])))}
    assert not missing


def test_the_imports_are_found():
    """An empty set would be a subset of anything."""
    assert {"torch", "yaml", "PIL", "jinja2", "safetensors"} <= imported()
