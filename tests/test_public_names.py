"""`from lgym import ...`: what is public, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lgym


@pytest.mark.parametrize("name", lgym.__all__)
def test_a_public_name_can_be_imported(name):
    """Catches a name in the table whose module has no such class."""
    assert getattr(lgym, name) is not None
    assert name in dir(lgym)


def test_an_unknown_name_is_an_attribute_error():
    """`hasattr` and tools that look for names depend on it."""
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = lgym.NoSuchName


def test_importing_lgym_alone_is_cheap():
    """An agent's file says `from lgym import TextAgent`, and nobody should wait for torch then."""
    heavy = "{'torch', 'lightning', 'transformers', 'gymnasium', 'numpy'}"
    lines = f"import sys, lgym; assert not {heavy} & set(sys.modules); lgym.TextAgent; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", lines], check=True)


def test_importing_the_environments_registers_them():
    """`gymnasium.make` knows lgym's own ids then, without any other import."""
    lines = "import lgym.envs, gymnasium; print(*(name for name in gymnasium.registry if name.startswith('lgym/')))"
    done = subprocess.run([sys.executable, "-c", lines], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [
        "lgym/BabyAI-v0",
        "lgym/BabyAI-PickupThenGoToLocal-v0",
        "lgym/RandomFrozenLake-v0",
        "lgym/GuessNumber-v0",
        "lgym/Maze-v0",
        "lgym/ReasoningGym-v0",
        "lgym/Sokoban-v0",
        "lgym/TextEnv-v0",
        "lgym/TextWorld-v0",
    ]
