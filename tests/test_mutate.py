"""`scripts/mutate.py` on a package of a few lines: what its tests notice, what they do not, and what never
ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mutate
from equivalents import EQUIVALENT
from mutants import mutants_of

ROOT = Path(mutate.__file__).parents[1]
SOURCE = '''"""Maths of 1 line."""

from typing import Literal

LIMIT: Literal[3] = 3


def within(x: float, low: float = 0.0) -> bool:
    """Whether 0 < x."""
    if x != x:
        raise ValueError(f"{x + 1} is no number")
    return low < x


def halved(x: float) -> float:
    return x / 2


def unseen(x: float) -> float:
    return -x
'''
TESTS = """
from tiny import within
from tiny.maths import halved

def test_within():
    assert within(1.0) and not within(-1.0)

def test_halved():
    assert halved(4.0) == 2.0
"""
HANGS = """
def emptied(items: list) -> None:
    while items:
        items.pop()
"""
TESTS_OF_HANGS = """
from tiny.hangs import emptied

def test_emptied():
    items = [1, 2]
    emptied(items)
    assert not items
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    files = {
        "tiny/__init__.py": "from tiny.maths import within\n",
        "tiny/maths.py": SOURCE,
        "tiny/hangs.py": HANGS,
    }
    for name, text in {**files, "tests/test_maths.py": TESTS, "tests/test_hangs.py": TESTS_OF_HANGS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(checkout: Path, *words: str) -> tuple[dict[str, str], str]:
    """The outcome of each change, and what was printed."""
    out = checkout / "mutants.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [
        sys.executable,
        str(ROOT / "scripts" / "mutate.py"),
        f"--root={checkout}",
        f"--json={out}",
        *words,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {row["change"]: row["outcome"] for row in json.loads(out.read_text())}, done.stdout


def test_survivors_are_listed_and_killed_ones_are_not(checkout):
    """Catches changes that never reach the tests (all would survive) and tests that fail by themselves (none
    would)."""
    outcomes, said = run(checkout, "tiny/maths.py")
    assert outcomes == {
        "3 -> 4": "survived",
        "0.0 -> 1.0": "killed",  # not 1 < 1
        "x != x -> x == x": "killed",  # every number is refused
        "low < x -> low <= x": "survived",  # nobody asks about the limit itself
        "x / 2 -> x / 2 * 2": "killed",
        "x / 2 -> x * 2": "killed",
        "2 -> 3": "killed",
        "-x -> -x * 2": "survived",
        "-x -> x": "survived",
    }
    assert "tiny/maths.py:12    low < x -> low <= x\n" in said
    assert "tiny/maths.py:20    -x -> x    (no test runs it)" in said
    assert "x / 2" not in said
    # 4 of 9
    assert said.splitlines()[-1].split() == ["tiny", "9", "5", "0", "4", "44.4%"]


def test_a_change_that_never_ends_is_killed(checkout):
    """Catches a run that waits for it, and changes that are written where people work."""
    before = {path: path.read_bytes() for path in checkout.rglob("*.py")}
    outcomes, _ = run(checkout, "tiny/hangs.py", "--timeout=2")
    assert outcomes == {"items -> not items": "killed", "items.pop() -> pass": "killed"}
    assert {path: path.read_bytes() for path in checkout.rglob("*.py")} == before


def test_a_sample_is_drawn_by_its_seed(checkout, capsys):
    """Catches a sample that nobody could draw again."""

    def listed(*words: str) -> list[str]:
        mutate.main(["tiny", f"--root={checkout}", "--list", *words])
        return capsys.readouterr().out.splitlines()

    assert len(listed()) == 11
    assert len(listed("--sample=4")) == 4
    assert listed("--sample=4") == listed("--sample=4", "--seed=0") != listed("--sample=4", "--seed=1")
    assert set(listed("--sample=4")) < set(listed())


def test_what_is_called_equivalent_is_still_there():
    """Catches an entry about a line that has changed since, and so might be wrong now."""
    for file, text, change, reason in EQUIVALENT:
        assert (text, change) in {(mutant.text, mutant.change) for mutant in mutants_of(ROOT / file, ROOT)}
        assert reason
