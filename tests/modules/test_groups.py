"""Refusal of episodes that cannot be compared with each other."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from helpers.rollouts import TEXT_PROMPTS, text_learner, text_rollout
from helpers.training import fit, tiny_config
from lgym.data.prompts import prompt_builder
from lgym.modules import GRPO, REINFORCE, RLOO, GiGPO
from lgym.policies import CandidatePolicy


def with_data(module, **settings):
    module.trainer = SimpleNamespace(datamodule=SimpleNamespace(**settings))
    return module


@pytest.mark.parametrize("algorithm", [GRPO, RLOO, GiGPO])
def test_groups_of_one_are_refused_before_a_model_is_loaded(algorithm):
    """Catches an algorithm that finds out after its first rollout; evaluation needs no groups."""
    module = with_data(algorithm(), group_size=1)
    with pytest.raises(ValueError, match=f"{algorithm.__name__} compares episodes.*group_size to 2"):
        module.setup("fit")
    module.setup("validate")
    with_data(module, group_size=2).setup("fit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episode_returns": torch.tensor([3.0, 1.0, 0.5])}, "whole episodes"),
        ({"reset_seeds": torch.tensor([[7, 7, 8], [9, 9, 5]])}, "group_size to 2"),
        (
            {"prompt_index": torch.tensor([[0, 1, 2], [1, 2, 2]])},
            "seed 7 began differently: 'red' and 'green'",
        ),
    ],
)
def test_episodes_that_cannot_be_compared_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        text_learner(GRPO).prepare(text_rollout(**changes))


def test_equal_first_prompts_begin_alike():
    """A rollout that has outgrown its cache holds a prompt twice: catches first observations compared by
    their rows, which ended runs with an accusation of the environment."""
    twice = {
        "prompts": (*TEXT_PROMPTS, replace(TEXT_PROMPTS[0])),
        "prompt_index": torch.tensor([[0, 1, 2], [3, 2, 2]]),
        "prompt_values": torch.zeros(4),
    }
    assert text_learner(GRPO).prepare(text_rollout(**twice))[0].advantages.any()


def test_reinforce_refuses_a_border_as_the_end_of_an_episode():
    """Returns to go were 8, 7, ..., 1 where they are 10, 9, ..., 3: the rewards behind the border are not
    known."""
    module = with_data(REINFORCE(), update_epochs=1, turns_per_rollout=64)
    with pytest.raises(
        ValueError, match="REINFORCE.*set data.episodes_per_rollout, not data.turns_per_rollout"
    ):
        module.setup("fit")
    cut = torch.zeros(2, 3, dtype=torch.bool)
    cut[0, 2] = True
    with pytest.raises(ValueError, match="set data.episodes_per_rollout"):
        text_learner(REINFORCE).prepare(text_rollout(cut=cut, truncated=cut))


def test_reinforce_refuses_an_episode_alone():
    """All its advantages would be 0, without a word."""
    module = with_data(REINFORCE(), update_epochs=1, episodes_per_rollout=1)
    with pytest.raises(ValueError, match="episodes_per_rollout is 1, .* set it to 2 or more"):
        module.setup("fit")


def test_a_run_that_outgrows_its_prompt_cache_goes_on(tmp_path, model_folder, monkeypatch):
    """100 tokens hold one prompt, so that each second turn has that of the first forgotten; the episodes of a
    group that begin afterwards still begin with the same prompt."""
    monkeypatch.setattr(prompt_builder, "CACHED_TOKENS", 100)
    module = GRPO(llm=tiny_config(model_folder), policy=CandidatePolicy())
    task = {"env_kwargs": {"turns": 3}, "num_envs": 4, "group_size": 16, "update_epochs": 2}
    curves = fit(module, tmp_path, data=task, trainer={})
    assert len(curves["rollout/return_mean"]) == 2
