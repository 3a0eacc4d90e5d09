"""Every YAML in configs/: it is small, it parses, and it runs from end to end on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from helpers.runs import checkpoint, lgym

FOLDER = Path(__file__).parents[1] / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
ALGORITHMS = sorted((FOLDER / "algorithms").glob("*.yaml"))

BUFFER = (
    '{"class_path": "lgym.data.ReplayBuffer", "init_args": {"capacity": 32, "minibatch_size": 4, '
    '"updates_per_rollout": 2, "learning_starts": 8}}'
)
LONG = ("blackjack_grpo", "frozen_lake_think", "guess_number", "textworld")  # free text, and games to compile
UNCLIPPED = ("a2c", "reinforce", "dqn", "sac")
LOGGED = {
    "turns": [{"observation": "Your hand: hard 12 against 4", "response": "stay", "reward": -1.0}] * 8,
    "terminated": True,
    "truncated": False,
}


def test_there_are_configs():
    """An empty list would pass every test below."""
    assert [path.stem for path in CONFIGS].count("blackjack") == 1
    assert [path.stem for path in ALGORITHMS].count("grpo") == 1


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_a_config_says_only_what_differs(config):
    """Long configurations hide what matters."""
    assert len(config.read_text(encoding="utf-8").splitlines()) <= 45


@pytest.mark.parametrize(
    "config",
    [pytest.param(path, marks=pytest.mark.slow if path.stem.startswith(LONG) else ()) for path in CONFIGS],
    ids=lambda path: path.stem,
)
def test_a_config_runs(config, tmp_path, model_folder):
    """Two rollouts, an evaluation, a checkpoint, then test and predict from it."""
    for name, package in {"textworld": "textworld", "babyai": "minigrid", "chain": "reasoning_gym"}.items():
        if config.stem.startswith(name):
            pytest.importorskip(package)
    text = config.read_text(encoding="utf-8")
    episodes = "episodes_per_rollout" in text
    small = {
        "trainer__enable_progress_bar": "false",
        "trainer__accelerator": "cpu",
        "data__num_envs": 4,
        "data__episodes_per_rollout" if episodes else "data__turns_per_rollout": 8,
        "data__eval_episodes": 3,
        "data__max_episode_steps": 6,
    }
    if any(f"lgym.modules.{name}" in text for name in ("DQN", "CQL")):
        small["data__replay"] = BUFFER
    else:
        small["data__update_epochs"] = 1
    if "offline" in config.stem:
        (tmp_path / "log.jsonl").write_text(json.dumps(LOGGED) + "\n", encoding="utf-8")
        small["data__logged_episodes"] = f'["{tmp_path}/log.jsonl"]'
    if "ExpertDemonstrations" in text:
        small["data__demonstrations__init_args__episodes"] = 3
    if "last_blocks" in text:
        small["model__init_args__llm__lora__last_blocks"] = 1  # the tiny model has two
    lgym(
        "fit",
        tmp_path,
        model_folder,
        config,
        **small,
        trainer__max_epochs=2,
        trainer__check_val_every_n_epoch=1,
    )
    assert checkpoint(tmp_path)["epoch"] == 1
    assert (tmp_path / "version_0" / "adapter" / "adapter_config.json").exists()
    lgym("test", tmp_path, model_folder, config, **small, ckpt_path="last")
    lgym("predict", tmp_path, model_folder, config, **small, ckpt_path="last")
    written = list(tmp_path.glob("version_0/predict/transcripts.jsonl"))
    assert len(written) == 1
    assert len(written[0].read_text().splitlines()) == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda path: path.stem)
def test_an_algorithm_takes_the_place_of_a_tasks_own(algorithm, tmp_path, model_folder):
    """Of settings that it does not have none stays behind, and what it needs is in its YAML. Blackjack's has
    the most: a loss, a critic, an optimizer, a schedule and the size of rollouts. The clip of PPO's loss, and
    its learning rate, are not for losses that nothing clips."""
    size = "turns_per_rollout" if algorithm.stem in ("dqn", "sac") else "episodes_per_rollout"
    lgym(
        "fit",
        tmp_path,
        model_folder,
        (FOLDER / "blackjack.yaml", algorithm),
        trainer__enable_progress_bar="false",
        trainer__accelerator="cpu",
        trainer__max_epochs=1,
        data__num_envs=4,
        data__eval_episodes=3,
        **{f"data__{size}": 8},
    )
    run = json.loads((tmp_path / "version_0" / "run.json").read_text())
    assert run["algorithm"].lower() == algorithm.stem
    settings = yaml.safe_load((tmp_path / "version_0" / "config.yaml").read_text())["model"]["init_args"]
    assert ((settings.get("loss") or {}).get("clip_low") is None) == (algorithm.stem in UNCLIPPED)
    assert (settings["optimizer"] is None) == (algorithm.stem in UNCLIPPED)
