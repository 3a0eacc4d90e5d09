"""The documentation's examples: a new algorithm in one file, a new environment in one agent and one YAML."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers import letters  # noqa: F401  (registers the environment)
from helpers.runs import checkpoint, lgym

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
LETTERS = """
model:
  class_path: raft.RAFT
  init_args:
    margin: 0.5
    llm: {lora: {r: 4}}
    policy: {class_path: lgym.policies.GenerationPolicy, init_args: {max_new_tokens: 2}}
data:
  env: Letter-v0
  agent: helpers.letters.LetterAgent
  episodes_per_rollout: 32
  group_size: 16
  eval_episodes: 4
"""
SMALL = {"trainer__max_epochs": 1, "trainer__accelerator": "cpu", "trainer__enable_progress_bar": "false"}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Example files are imported as a user's would be."""
    monkeypatch.syspath_prepend(EXAMPLES)


def test_a_new_algorithm_is_one_short_file():
    """The documentation promises at most 60 lines."""
    assert len((EXAMPLES / "raft.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_new_algorithm_keeps_the_best_of_each_group():
    """Seed 7 has returns 0, 2, 2 and seed 3 has -1, -4; the turns of the best episodes have advantage 1."""
    from raft import RAFT

    turns = SimpleNamespace(
        episode_returns=torch.tensor([0.0, 2.0, 2.0, -1.0, -4.0]),
        reset_seeds=torch.tensor([7, 7, 7, 3, 3]),
        episode_index=torch.tensor([0, 1, 1, 2, 3, 4]),
    )
    assert RAFT().estimate_advantages(turns).advantages.tolist() == [0, 1, 1, 1, 1, 0]
    assert RAFT(margin=3.0).estimate_advantages(turns).advantages.tolist() == [1, 1, 1, 1, 1, 1]


def test_the_new_algorithm_trains_from_a_yaml(tmp_path, model_folder):
    """A constructor that the command line cannot parse, or a missing hook, ends the run."""
    config = tmp_path / "letters.yaml"
    config.write_text(LETTERS)
    lgym("fit", tmp_path, model_folder, config, **SMALL)
    assert checkpoint(tmp_path)["epoch"] == 0


def test_the_new_environment_trains_from_its_yaml(tmp_path, model_folder):
    """The agent and the YAML that people copy first."""
    small = {**SMALL, "data__num_envs": 4, "data__turns_per_rollout": 32, "data__eval_episodes": 4}
    lgym("fit", tmp_path, model_folder, EXAMPLES / "cliff.yaml", **small, data__max_episode_steps=8)
    assert checkpoint(tmp_path)["epoch"] == 0


def test_a_game_by_text_trains_from_its_yaml(tmp_path, model_folder):
    """With the demonstrations first: the expert's answers have the pattern's form."""
    small = {**SMALL, "data__turns_per_rollout": 16, "data__eval_episodes": 4}
    lgym("fit", tmp_path, model_folder, EXAMPLES / "word_games.yaml", **small)
    assert checkpoint(tmp_path)["epoch"] == 0


def test_the_pages_show_the_example_files():
    """A page with a copy of its own would go stale."""
    pages = "".join(path.read_text(encoding="utf-8") for path in EXAMPLES.parent.rglob("*.md"))
    shown = set(re.findall(r"\{literalinclude\} \S*examples/(\S+)", pages))
    assert shown == {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")}
