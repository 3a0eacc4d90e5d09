"""What the docs promise: every metric is in the table, and the README's commands and code run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import gymnasium
import pytest

from helpers.letters import CONFIG as LETTERS
from helpers.runs import lgym, scalars

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.strip() and not line.startswith("#")
]
LGYM = [command for command in COMMANDS if re.search(r"(^|/)lgym ", command) or "bootstrap.py" in command]


def test_every_logged_metric_is_in_the_table(tmp_path, model_folder):
    """A number that nobody can look up helps nobody."""
    table = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    small = {"data__num_envs": 4, "data__episodes_per_rollout": 8, "data__eval_episodes": 6}
    config = ROOT / "configs" / "blackjack.yaml"
    lgym(
        "fit", tmp_path, model_folder, config, **small, trainer__max_epochs=1, trainer__check_val_every_n_epoch=1,
        trainer__accelerator="cpu", trainer__enable_progress_bar="false", model__init_args__loss__kl_coef=0.1,
    )  # fmt: skip
    speaking = tmp_path / "letters.yaml"
    speaking.write_text(LETTERS)
    lgym(
        "fit", tmp_path, model_folder, speaking, **small | {"data__group_size": 2}, trainer__max_epochs=1,
        model__init_args__loss__kl_coef=0.1, trainer__check_val_every_n_epoch=1,
    )  # fmt: skip
    logged = (set(scalars(tmp_path)) | set(scalars(tmp_path, 1))) - {"epoch"}
    assert len(logged) > 20
    for name in logged:
        group, rest = name.split("/")
        assert f"`{name}`" in table or (f"`{group}/…`" in table and f"`{rest}`" in table), name


def test_the_readme_has_commands():
    """No command found would pass everything below."""
    assert len(LGYM) >= 6


@pytest.mark.parametrize("command", sorted({c for c in LGYM if "test" not in shlex.split(c)[2:3]}))
def test_a_readme_command_runs(command, tmp_path, model_folder, monkeypatch):
    """Each `lgym` command of the README, as it stands there, on the tiny model and few episodes."""
    words = shlex.split(command)
    words = words[next(i for i, w in enumerate(words) if w.endswith("lgym") or w.endswith("bootstrap.py")) + 1 :]
    small = {
        "--trainer.accelerator": "cpu",
        "--trainer.default_root_dir": str(tmp_path),
        "--trainer.max_epochs": "1",
        "--model.init_args.llm.model": str(model_folder),
        "--data.num_envs": "4",
        "--data.turns_per_rollout" if "configs/cartpole.yaml" in words else "--data.episodes_per_rollout": "8",
        "--data.eval_episodes": "4",
    }
    flags = [f"{name}={value}" for name, value in small.items()]
    monkeypatch.chdir(ROOT)
    from lgym.cli import main

    if "--ckpt_path" in words:
        main(["fit", "--config", "configs/blackjack.yaml", *flags])
        if words[0] == "fit":
            flags[2] = "--trainer.max_epochs=2"
    if {"--print_config", "--help", "--model.help"} & set(words):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
    else:
        main([*words, *flags])


def test_the_readmes_agent_plays(tmp_path, model_folder):
    """The 12 lines are the first thing that people copy."""
    code = next(block for language, block in BLOCKS if language == "python" and "TextAgent" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 14
    space: dict = {}
    exec(code, space)
    agent = space["FrozenLakeAgent"]()
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    observation, info = env.reset(seed=0)
    assert "0" in agent.format_observation(observation)
    for number, text in enumerate(agent.candidates(observation, info)):
        assert agent.extract_action(text).action == number
