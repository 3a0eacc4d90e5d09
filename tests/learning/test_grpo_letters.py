"""GRPO teaches the tiny model to say one of a few letters; rewards that are turned round teach the
opposite."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from helpers.letters import LetterAgent
from helpers.training import fit, tiny_config
from lgym.models import LLMConfig
from lgym.modules import GRPO
from lgym.policies import GenerationPolicy
from lgym.types import ConfigError

DATA = {
    "env": "Letter-v0",
    "agent": LetterAgent(),
    "episodes_per_rollout": 128,
    "group_size": 16,
    "num_envs": 64,
    "update_epochs": 2,
}


def test_data_without_groups_is_refused_before_a_model_is_loaded(tmp_path):
    """The model's name is wrong too, and that is not what is complained about."""
    module = GRPO(llm=LLMConfig(model="no-such-model"), policy=GenerationPolicy())
    with pytest.raises(ConfigError, match="set data.group_size to 2"):
        fit(module, tmp_path, data={**DATA, "group_size": 1}, trainer={})


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_grpo_learns_what_is_rewarded(tmp_path, model_folder, sign):
    """Random bytes name a vowel in about one of ten responses; the control is rewarded for avoiding them."""
    module = GRPO(
        llm=tiny_config(model_folder),
        policy=GenerationPolicy(max_new_tokens=2),
        optimizer=partial(torch.optim.AdamW, lr=0.02),
    )
    curves = fit(module, tmp_path, data={**DATA, "env_kwargs": {"sign": sign}}, trainer={"max_epochs": 15})
    first, last = (abs(curves["rollout/return_mean"][i]) for i in (0, -1))
    assert 0.02 < first < 0.4
    if sign > 0:
        assert last > 0.9
    else:
        assert last < 0.02
    assert max(curves["policy/logprob_diff_max"]) < 1e-3
