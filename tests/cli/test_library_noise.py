"""The command line as a user starts it, in a process of its own: its lines are lgym's, and so is its help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runs import ECHO

ROOT = Path(__file__).parents[2]
AGENT = """
import warnings
from helpers.echo import EchoAgent

class AgingAgent(EchoAgent):
    def bind(self, env):
        warnings.warn("this agent is old", DeprecationWarning, stacklevel=1)
        warnings.warn("this agent will change", FutureWarning, stacklevel=1)
"""
NOISE = ("gemm_4bit", "Loading weights", "TPU", "Seed set", "is_gradient_checkpointing", "💡", "Restoring")


@pytest.fixture
def started(tmp_path, model_folder):
    """Runs a command on the tiny model; what it said on both streams."""
    (tmp_path / "aging.py").write_text(AGENT)
    settings = ECHO | {
        "model.init_args.llm.model": str(model_folder),
        "trainer.default_root_dir": str(tmp_path / "runs"),
        "trainer.max_epochs": "1",
        "data.agent": "aging.AgingAgent",
    }

    def run(command, *more):
        options = [f"--{name}={value}" for name, value in settings.items()]
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", tmp_path)))
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONWARNINGS": "default::DeprecationWarning:aging",
        }
        done = subprocess.run(
            [sys.executable, "-m", "lgym.cli", command, *options, *more],
            capture_output=True, text=True, cwd=tmp_path, timeout=300, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run


def first_line(said: str) -> str:
    return said.strip().splitlines()[0]


@pytest.mark.slow
def test_the_first_lines_are_lgyms(started):
    """Libraries say nothing; warnings of the user's agent stay."""
    for command, more, begins in (
        ("fit", (), "Evaluating the policy before its first step"),
        ("check", ("--random_episodes=50",), "Echo-v0 in the words of AgingAgent"),
        ("test", ("--ckpt_path=last",), "Mean return per episode"),
    ):
        out, errors = started(command, *more)
        assert first_line(out).startswith(begins)
        assert "aging.py:7: DeprecationWarning: this agent is old" in first_line(errors)
        assert "FutureWarning: this agent will change" in errors
        assert not [noise for noise in NOISE if noise in out + errors]
        assert "site-packages" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("program", ["bench", "export"])
def test_the_help_of_programs_begins_with_it(program):
    """Catches what libraries say in commands that are none of Lightning's."""
    done = subprocess.run(
        [sys.executable, "-m", "lgym.cli", program, "--help"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0
    assert first_line(done.stderr + done.stdout).startswith(f"usage: lgym {program}")
