"""Every precision, with every way to act: what is kept of a turn, and what is trained, must fit together in each."""

from __future__ import annotations

import math

import pytest

from helpers.runs import checkpoint, lgym, scalars

CONFIG = """
trainer: {{accelerator: cpu, enable_progress_bar: false, max_epochs: 1, limit_val_batches: 0, precision: {precision}}}
model:
  class_path: lgym.modules.TextPPO
  init_args:
    llm: {{value_hidden_size: 16, lora: {lora}}}
    policy: {{class_path: lgym.policies.{policy}}}
    loss: {{entropy_coef: 0.01}}
data:
  env: Echo-v0
  env_kwargs: {{turns: 3}}
  agent: helpers.echo.ForgivingEchoAgent
  episodes_per_rollout: 8
  num_envs: 4
  history: {history}
  update_epochs: 2
"""

LIMITS = {"CandidatePolicy": {}, "GenerationPolicy": {"max_new_tokens": 3}, "ThinkPolicy": {"max_reasoning_tokens": 3}}


@pytest.mark.parametrize("history", [0, "full"])
@pytest.mark.parametrize("policy", LIMITS)
@pytest.mark.parametrize(
    ("precision", "lora", "gap"),
    [("32-true", "{r: 4}", 1e-4), ("bf16-true", "{r: 4}", 0.3), ("bf16-mixed", "{r: 4}", 0.3), ("bf16-mixed", "null", 0.3)],
)
def test_plays_and_learns(tmp_path, model_folder, precision, lora, gap, policy, history):
    """Under autocast keys come in fp32 and values in bf16, and some sums in bf16: they did not fit together."""
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG.format(precision=precision, lora=lora, policy=policy, history=history), encoding="utf-8")
    limits = {f"model__init_args__policy__init_args__{name}": value for name, value in LIMITS[policy].items()}
    lgym("fit", tmp_path, model_folder, config, **limits)
    told = scalars(tmp_path)
    assert max(told["policy/logprob_diff_max"].values()) < gap
    assert math.isfinite(told["loss/total"][max(told["loss/total"])])
    assert checkpoint(tmp_path)["epoch"] == 0
