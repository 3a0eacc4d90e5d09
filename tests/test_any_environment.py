"""Environments without an agent of their own train from a YAML alone; wrappers come by class_path."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium
import pytest
import yaml
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from helpers import spaces  # noqa: F401  (registers the environments)
from helpers.runs import checkpoint, lgym, scalars
from lgym.agents import GeneralAgent
from lgym.agents.observation_formatter import ObservationFormatter
from lgym.cli import main
from lgym.envs import make_env

RUN = """
trainer: {accelerator: cpu, enable_progress_bar: false, max_epochs: 1, enable_checkpointing: false}
model:
  class_path: lgym.modules.PPO
  init_args: {llm: {lora: {r: 4}, value_hidden_size: 16}}
data: {num_envs: 2, turns_per_rollout: 8, update_epochs: 1, eval_episodes: 1, max_episode_steps: 3, %s}
"""

DISCRETE = "wrappers: [{class_path: gymnasium.wrappers.DiscretizeAction, init_args: {bins: 3}}]"

ENVIRONMENTS = {
    "MountainCar-v0": "env: MountainCar-v0",
    "Acrobot-v1": "env: Acrobot-v1",
    "Pendulum-v1": f"env: Pendulum-v1, {DISCRETE}",
    "MountainCarContinuous-v0": f"env: MountainCarContinuous-v0, {DISCRETE}",
    "CliffWalking-v1": "env: CliffWalking-v1, env_kwargs: {is_slippery: true}",
    "Robot-v0": "env: Robot-v0",
    "Pair-v0": "env: Pair-v0",
    "Board-v0": "env: Board-v0",
    "Flags-v0": "env: Flags-v0",
    "Counts-v0": "env: Counts-v0",
    "Story-v0": "env: Story-v0",
}


def written(tmp_path, data, run=RUN):
    path = tmp_path / "run.yaml"
    path.write_text(run % data)
    return path


def test_there_are_ten_and_five_kinds():
    kinds = {type(gymnasium.make(name, disable_env_checker=True).observation_space) for name in ENVIRONMENTS}
    assert len(ENVIRONMENTS) >= 10
    assert kinds == {Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_trains_from_yaml_alone(name, tmp_path, model_folder):
    lgym("fit", tmp_path, model_folder, written(tmp_path, ENVIRONMENTS[name]))
    assert list(scalars(tmp_path)["rollout/turns"].values()) == [8.0]


def test_minigrid_trains_from_its_id_alone(tmp_path, model_folder):
    """A picture-like part and a mission, with worker processes, in which nothing has imported minigrid."""
    pytest.importorskip("minigrid")
    config = written(tmp_path, "env: MiniGrid-DoorKey-5x5-v0, subprocess_envs: true")
    lgym("fit", tmp_path, model_folder, config)
    assert list(scalars(tmp_path)["rollout/turns"].values()) == [8.0]


SPEAKING = """
trainer: {accelerator: cpu, enable_progress_bar: false, max_epochs: 1, enable_checkpointing: false}
model:
  class_path: lgym.modules.A2C
  init_args: {llm: {lora: {r: 4}}, policy: {max_new_tokens: 3}}
data:
  {num_envs: 2, turns_per_rollout: 4, update_epochs: 1, eval_episodes: 1, max_episode_steps: 3, %s}
"""


@pytest.mark.parametrize("name", ["Spoken-v0", "Wide-v0"])
def test_texts_and_many_actions_are_spoken(name, tmp_path, model_folder, capfd):
    """And a policy that chooses is told so, before a model is loaded."""
    agent = "agent: {class_path: lgym.agents.GeneralAgent, init_args: {fallback: random}}"
    lgym("fit", tmp_path, model_folder, written(tmp_path, f"env: {name}, {agent}", SPEAKING))
    with pytest.raises(SystemExit):
        lgym("fit", tmp_path, "no-such-model", written(tmp_path, f"env: {name}"))
    said = capfd.readouterr().err
    assert {"Spoken-v0": "its actions are texts", "Wide-v0": "400 actions"}[name] in said
    assert "GenerationPolicy" in said


def test_a_continuous_action_is_refused_before_a_model_is_loaded(tmp_path, capfd):
    with pytest.raises(SystemExit):
        lgym("fit", tmp_path, "no-such-model", written(tmp_path, "env: Pendulum-v1"))
    assert "gymnasium.wrappers.DiscretizeAction, init_args: {bins: 3}" in capfd.readouterr().err


def test_wrappers_come_by_class_path_and_the_last_is_outermost(tmp_path, model_folder):
    """Rewards of -1 a step are clipped to -0.5, then multiplied by -4. The run's own configuration can be run
    again."""
    wrappers = (
        "wrappers: [{class_path: gymnasium.wrappers.ClipReward, init_args: {min_reward: -0.5, max_reward: 0}},"
        " {class_path: helpers.wrappers.ScaledReward, init_args: {factor: -4}}]"
    )
    config = written(
        tmp_path, f"env: MountainCar-v0, {wrappers}", RUN.replace("eval_episodes: 1", "eval_episodes: 2")
    )
    lgym("fit", tmp_path, model_folder, config)
    assert list(scalars(tmp_path)["val_greedy/return_mean"].values()) == [3 * 2.0]  # three steps of -0.5 * -4
    main(["validate", "--config", str(tmp_path / "version_0" / "config.yaml")])


def test_a_wrapper_that_does_not_fit_is_named(tmp_path, capfd):
    with pytest.raises(SystemExit):
        lgym("fit", tmp_path, "no-such-model", written(tmp_path, f"env: MountainCar-v0, {DISCRETE}"))
    said = capfd.readouterr().err
    assert "Wrapper 1 of 1" in said
    assert "Box" in said
    with pytest.raises(SystemExit):
        lgym(
            "fit",
            tmp_path,
            "m",
            written(tmp_path, "env: Echo-v0, wrappers: [{class_path: gymnasium.wrappers.NoSuch}]"),
        )
    assert "NoSuch" in capfd.readouterr().err


def test_a_run_goes_on_with_the_general_agent(tmp_path, model_folder):
    """A checkpoint holds nothing of the agent's."""
    config = written(tmp_path, "env: CliffWalking-v1", RUN.replace(", enable_checkpointing: false", ""))
    lgym("fit", tmp_path, model_folder, config)
    lgym("fit", tmp_path, model_folder, config, ckpt_path="last", trainer__max_epochs=2)
    assert checkpoint(tmp_path)["epoch"] == 1


DOCS = (Path(__file__).parents[1] / "docs" / "environments.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", DOCS, flags=re.DOTALL)
FRAGMENTS = [yaml.safe_load(block) for language, block in BLOCKS if language == "yaml"]


@pytest.mark.parametrize(
    "fragment", [f for f in FRAGMENTS if set(f) == {"data"}], ids=lambda f: f["data"]["env"]
)
def test_the_docs_settings_run(fragment, tmp_path, model_folder):
    run = yaml.safe_load(RUN % "env: any")
    run["data"] |= fragment["data"]
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(run))
    lgym("fit", tmp_path, model_folder, config)


def test_the_docs_say_what_the_general_agent_does():
    """The table's examples."""
    agent = FRAGMENTS[0]["data"]["agent"]["init_args"]
    general = GeneralAgent(**agent)
    general.bind(make_env("MountainCar-v0"))
    assert f"*{general.format_observation([-0.476, 0.0123])}*" in DOCS
    words = ObservationFormatter(make_env("MountainCar-v0").observation_space)
    assert f"`{words([-0.476, 0.0334])}`" in DOCS
