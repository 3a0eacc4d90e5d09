"""The floors of the design, read from every file's imports: a floor imports only the floors below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lgym

ROOT = Path(lgym.__file__).parent
FLOORS = [
    {"functional", "rollout", "distributed", "types", "cache", "plain_text", "math_libraries", "phases"},
    {"batch", "transitions", "terminal", "pretrained"},
    {"models", "agents", "envs", "memory"},
    {"policies"},
    {"modules", "data"},
    {"callbacks"},
    {"cli", "loop"},
]
"""From the ground up. Parts on one floor do not import each other, but for the torch-free ones below."""

TORCH_FREE = {
    "types",
    "cache",
    "plain_text",
    "math_libraries",
    "phases",
    "pretrained",
    "agents",
    "envs",
    "memory",
}
MAY_MEET = [{"agents", "envs"}, {"agents", "memory"}]
LEARNING = {"modules", "policies", "models"}
PLAYING = {"data", "agents", "envs", "memory"}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def lgym_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("lgym.")} - {part_of(path)}


def floor(part: str) -> int:
    return next(i for i, parts in enumerate(FLOORS) if part in parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    """An import upwards, or across, ties two things together that were apart."""
    part = part_of(path)
    for other in lgym_parts(path):
        meets = any({part, other} <= pair for pair in MAY_MEET)
        assert meets or floor(other) < floor(part), f"{part} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_playing_and_learning_do_not_know_each_other(path):
    """Data says what happened; modules say what to learn from it. They meet in protocols and batches."""
    part = part_of(path)
    if part in LEARNING:
        assert not lgym_parts(path) & PLAYING
    if part in PLAYING:
        assert not lgym_parts(path) & LEARNING


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_users_write_needs_no_torch(path):
    """An agent must be importable, and testable, in a second."""
    if part_of(path) in TORCH_FREE:
        heavy = {name.split(".")[0] for name in imports(path)} & {
            "torch",
            "lightning",
            "transformers",
            "peft",
        }
        assert not heavy


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_stay_short(path):
    """Over 300 lines is more than one concept."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300
