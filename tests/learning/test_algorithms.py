"""Every algorithm learns the echo task, and none does when its sign is turned round: one run of a few seconds each."""

from __future__ import annotations

import pytest

from helpers.runs import lgym, scalars

CONFIG = """
trainer: {{accelerator: cpu, enable_progress_bar: false, max_epochs: 12, check_val_every_n_epoch: 12}}
model:
  class_path: lgym.modules.{algorithm}
  init_args:
    llm: {{lora: {{r: 4}}, value_hidden_size: 16}}
    policy: {{class_path: lgym.policies.CandidatePolicy, init_args: {{length_normalization: token, temperature: 3}}}}
    optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 0.01}}}}
data:
  env: Echo-v0
  env_kwargs: {{sign: {sign}}}
  agent: helpers.echo.EchoAgent
  num_envs: 64
  episodes_per_rollout: 128
  update_epochs: 4
  minibatch_size: 2
  eval_episodes: 200
"""
GROUPS = {"data__group_size": 8}
ONE_PASS = {
    "data__update_epochs": 1,
    "data__minibatch_size": 1,
    "trainer__max_epochs": 40,
    "trainer__check_val_every_n_epoch": 40,
}
ALGORITHMS = {
    "GRPO": GROUPS,
    "RLOO": GROUPS,
    "GiGPO": GROUPS,
    "REINFORCE": ONE_PASS,
    "A2C": {**ONE_PASS, "model__init_args__optimizer__init_args__lr": 0.003},
    "TextPPO": {"model__init_args__optimizer__init_args__lr": 0.005},
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_learns_to_say_the_word(tmp_path, model_folder, algorithm, sign):
    """Chance is 1/3; the control loses 1 for the word shown, and its chance is -1/3."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(algorithm=algorithm, sign=sign))
    lgym("fit", tmp_path, model_folder, config, **ALGORITHMS[algorithm])
    last = list(scalars(tmp_path)["val_sampled/return_mean"].values())[-1]
    if sign > 0:
        assert last > 0.75
    else:
        assert last > -0.1
