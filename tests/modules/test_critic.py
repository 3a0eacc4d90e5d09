"""The critic: values in rewards, learned alike however large these are, and algorithms without one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from helpers import tiny
from helpers.rollouts import (
    CANDIDATE_PROMPTS,
    TEXT_PROMPTS,
    candidate_learner,
    candidate_rollout,
    gradients_of,
    text_learner,
    text_rollout,
)
from helpers.training import tiny_config
from lgym.callbacks.adapter_export import export_adapter
from lgym.data.rollout.recorder import PromptTable
from lgym.modules import A2C, GRPO, PPO, REINFORCE, RLOO, GiGPO
from lgym.policies import CandidatePolicy


def make(algorithm, **settings):
    """An algorithm with the same weights each time; without a name, PPO between candidates."""
    torch.manual_seed(0)
    return candidate_learner(**settings) if algorithm is None else text_learner(algorithm, **settings)


@pytest.mark.parametrize(
    ("algorithm", "settings"), [(None, {"whiten_advantages": False}), (None, {}), (PPO, {}), (A2C, {})]
)
def test_rewards_a_hundred_times_as_large_are_learned_from_alike(algorithm, settings):
    """Catches a part of the loss whose size is that of the rewards; returns stay in rewards."""
    results = []
    for factor in (1.0, 100.0):
        module = make(algorithm, gamma=0.9, **settings)
        module.policy.llm.value_head.update_statistics(
            torch.tensor([-factor, factor])
        )  # scale the values too
        rollout = candidate_rollout(module) if algorithm is None else text_rollout()
        batch, _ = module.prepare(replace(rollout, rewards=rollout.rewards * factor))
        error = float(module.loss(batch)[1]["loss/value"])
        results.append((gradients_of(module, batch), batch.returns, error))
    (gradients, returns, error), (scaled_gradients, scaled_returns, scaled_error) = results
    assert gradients.keys() == scaled_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            scaled_gradients[name], gradient, rtol=1e-3, atol=1e-7
        )  # the statistics are fp32
    torch.testing.assert_close(scaled_returns, 100.0 * returns, rtol=1e-6, atol=1e-6)
    assert scaled_error == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("algorithm", [None, PPO], ids=["candidates", "text"])
def test_values_at_rollout_time_are_in_rewards(algorithm):
    """Catches values that are the head's normalized output: V = mean + std * output."""
    prompts = CANDIDATE_PROMPTS if algorithm is None else TEXT_PROMPTS
    values = {}
    for mean, std in ((0.0, 1.0), (5.0, 0.1)):
        policy = make(algorithm).policy
        policy.llm.value_head.mean.fill_(mean)
        policy.llm.value_head.std.fill_(std)
        values[std] = policy.values(prompts)
        torch.testing.assert_close(policy.act(prompts, None)[1], values[std])
    assert values[1.0].abs().min() > 1e-3
    torch.testing.assert_close(values[0.1], 5.0 + 0.1 * values[1.0])


@pytest.mark.parametrize("algorithm", [GRPO, RLOO, GiGPO, REINFORCE])
def test_algorithms_without_a_critic_have_no_value_head(tmp_path, model_folder, algorithm):
    """It was built, asked for values (38 % of a text game's playing time), trained and exported."""
    module = algorithm(llm=tiny_config(model_folder))
    module.configure_model()
    assert not module.policy.has_critic
    assert not any("value_head" in name for name in module.state_dict())
    export_adapter(module, tmp_path, {})
    assert (tmp_path / "adapter_model.safetensors").exists()
    assert not (tmp_path / "value_head.safetensors").exists()
    _, metrics = module.prepare(text_rollout())
    assert not any(name.startswith("value/") for name in metrics)


def test_without_a_critic_no_value_is_computed():
    """The observation that a truncated episode ends with is a prompt for its value alone."""
    table = PromptTable(SimpleNamespace(has_critic=False))  # which has nothing to compute with
    table.index(TEXT_PROMPTS[0])
    table.complete()
    assert torch.from_numpy(table.values).isnan().tolist() == [True]


def test_the_values_of_a_policy_without_a_head_are_not_known():
    """A zero would be a value like any other."""
    policy = CandidatePolicy()
    llm = tiny.llm()
    llm.value_head = None
    policy.bind(llm)
    assert policy.values(CANDIDATE_PROMPTS).isnan().all()
    assert policy.act(CANDIDATE_PROMPTS, None)[1].isnan().all()
    assert not policy.has_critic
