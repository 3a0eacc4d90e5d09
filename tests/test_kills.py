"""`scripts/kill_test.py`: whenever a run is killed, it ends as the run that nobody killed.

The long ones are the whole table: twenty kills of each kind of run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.runs import lgym
from kill_test import differences

HERE = Path(__file__).parent
CHOOSES = """
trainer: {{accelerator: cpu, max_epochs: 4, check_val_every_n_epoch: 2}}
model:
  class_path: lgym.modules.PPO
  init_args:
    llm: {{model: {model}, lora: {{r: 4}}, value_hidden_size: 16}}
    lr_scheduler: {{class_path: torch.optim.lr_scheduler.LinearLR, init_args: {{total_iters: 4}}}}
    sft: {{coef: {coef}}}
data:
  env: helpers.echo:Counting-v0
  agent: helpers.echo.CountingAgent
  max_episode_steps: 5
  num_envs: 4
  minibatch_size: 8
  eval_episodes: 12
  {more}
"""
SPEAKS = """
trainer: {{accelerator: cpu, max_epochs: 4, check_val_every_n_epoch: 2}}
model:
  class_path: lgym.modules.GRPO
  init_args:
    llm: {{model: {model}, lora: {{r: 4}}}}
    policy: {{max_new_tokens: 3}}
    sft: {{coef: {coef}}}
data:
  env: helpers.letters:Letter-v0
  agent: helpers.letters.LetterAgent
  episodes_per_rollout: 32
  group_size: 8
  num_envs: 16
  update_epochs: 2
  minibatch_size: 8
  eval_episodes: 12
  {more}
"""
VALUES = (
    CHOOSES.replace("lgym.modules.PPO", "lgym.modules.SAC")
    .replace("    lr_scheduler", "    polyak: 0.1\n    lr_scheduler")
    .replace(
        "minibatch_size: 8",
        "replay: {{class_path: lgym.data.ReplayBuffer, init_args: "
        "{{capacity: 100, minibatch_size: 16, updates_per_rollout: 6, learning_starts: 40}}}}",
    )
)
REPLAY = (
    "self_imitation: {class_path: lgym.data.BestEpisodeBuffer, init_args: {top_fraction: 0.5, min_return: 0}}"
)
MEMORY = """working_memory: {turns: 2, max_characters: 50}
  episodic_memory: {unit: turn, half_life: 2, capacity: 20, max_characters: 30}"""
RUNS = {
    "PPO, in mid-episode": (CHOOSES, 0.0, "turns_per_rollout: 48"),
    "PPO, replay and memory": (CHOOSES, 0.5, f"episodes_per_rollout: 16\n  {REPLAY}\n  {MEMORY}"),
    "PPO, workers": (CHOOSES, 0.0, "turns_per_rollout: 48\n  subprocess_envs: true"),
    "SAC, replay buffer and target network": (VALUES, 0.0, "turns_per_rollout: 48"),
    "GRPO": (SPEAKS, 0.0, ""),
    "GRPO, replay and memory": (SPEAKS, 0.5, f"{REPLAY}\n  {MEMORY}"),
}


def killed(tmp_path: Path, model: Path, name: str, *words: str) -> str:
    """What the script says of a kind of run; it has to end with status 0."""
    text, coef, more = RUNS[name]
    config = tmp_path / "run.yaml"
    config.write_text(text.format(model=model, coef=coef, more=more))
    script = HERE.parent / "scripts" / "kill_test.py"
    run = subprocess.run(
        [sys.executable, str(script), f"--config={config}", f"--root={tmp_path / 'runs'}", *words],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, model_folder):
    """Once while it plays, once while it learns, twice while it writes a checkpoint."""
    said = killed(tmp_path, model_folder, "PPO, replay and memory", "--kills=4")
    assert [line.split(",")[0] for line in said.splitlines()[:4]] == [
        "playing",
        "learning",
        "writing",
        "replacing",
    ]
    assert "4 of 4 equal, 4 of them killed" in said


def test_a_difference_is_found(tmp_path, model_folder):
    """Of another seed: in the weights, in the curves, and where the environments stand."""
    for seed in (0, 1):
        lgym("fit", tmp_path / str(seed), model_folder, trainer__max_epochs=1, seed_everything=seed)
    assert differences(tmp_path / "0", tmp_path / "0") == []
    found = differences(tmp_path / "0", tmp_path / "1")
    for name in ("/state_dict/", "/optimizer_states/", "/RolloutDataModule/", "/curves/rollout/return_mean/"):
        assert any(difference.startswith(name) for difference in found), name


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", RUNS)
def test_the_table(tmp_path, model_folder, name, devices):
    assert "20 of 20 equal" in killed(tmp_path, model_folder, name, "--kills=20", f"--devices={devices}")
