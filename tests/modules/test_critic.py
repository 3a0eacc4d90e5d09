"""The critic: values are in rewards wherever people read them, and algorithms without one have none."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from helpers import tiny
from helpers.runs import checkpoint, lgym, scalars
from lgym.models import LLMConfig
from lgym.modules import A2C, GRPO, PPO, REINFORCE, RLOO, GiGPO, TextPPO
from lgym.policies import CandidatePolicy, GenerationPolicy
from modules import test_grpo, test_ppo


def learner(algorithm, **settings):
    torch.manual_seed(0)
    policy = CandidatePolicy() if algorithm is PPO else GenerationPolicy(max_new_tokens=5)
    policy.bind(tiny.llm(dtype=torch.float64))
    module = algorithm(llm=LLMConfig(model="tiny"), policy=policy, **settings)
    module.configure_model()
    return module


def gradients(algorithm, scale, rewards_by, **settings):
    """Of the loss at a reward scale, for rewards that many times as large; the batch's returns and the value loss."""
    module = learner(algorithm, reward_scale=scale, gamma=0.9, **settings)
    module.trainer = SimpleNamespace(precision_plugin=SimpleNamespace(forward_context=torch.no_grad), current_epoch=5)
    played = test_ppo.rollout(module) if algorithm is PPO else test_grpo.rollout()
    played = type(played)(**{**vars(played), "rewards": played.rewards * rewards_by})
    batch = module.prepare(played)
    total, metrics = module.loss(batch)
    total.backward()
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return found, batch.returns, float(metrics["loss/value"])


@pytest.mark.parametrize(
    ("algorithm", "settings"), [(PPO, {"whiten_advantages": False}), (PPO, {}), (TextPPO, {}), (A2C, {})]
)
def test_a_reward_scale_changes_the_units_of_learning_and_no_others(algorithm, settings):
    """Rewards a hundred times as large, at a hundredth of the scale, are learned from alike; what is shown of values stays
    in rewards, where it was in scaled ones."""
    plain, returns, error = gradients(algorithm, 1.0, 1.0, **settings)
    scaled, scaled_returns, scaled_error = gradients(algorithm, 0.01, 100.0, **settings)
    assert plain.keys() == scaled.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(scaled[name], gradient, rtol=1e-3, atol=1e-7)  # head and scale are fp32
    torch.testing.assert_close(scaled_returns, 100.0 * returns, rtol=1e-6, atol=1e-6)
    assert scaled_error == pytest.approx(10_000 * error, rel=1e-5)


def test_values_are_in_rewards(tmp_path, model_folder):
    """In transcripts they were ten times what is paid, or whatever the scale. Echo pays 1 or 0: values are between."""
    options = {
        "trainer__max_epochs": 8, "model__init_args__value_warmup": 8, "data__update_epochs": 4, "data__minibatch_size": 1,
        "model__init_args__optimizer": "torch.optim.AdamW", "model__init_args__optimizer__init_args__lr": 0.01,
    }  # fmt: skip
    lgym("fit", tmp_path, model_folder, model__init_args__reward_scale=10, model__init_args__value_coef=0.01, **options)
    lgym("predict", tmp_path, model_folder, model__init_args__reward_scale=10, ckpt_path="last", data__eval_episodes=20)
    (written,) = tmp_path.rglob("transcripts.jsonl")
    lines = written.read_text(encoding="utf-8").splitlines()
    values = [turn["value"] for line in lines for turn in json.loads(line)["turns"]]
    assert 0.05 < sum(values) / len(values) < 0.95


WITHOUT = {"GRPO": GRPO, "RLOO": RLOO, "GiGPO": GiGPO, "REINFORCE": REINFORCE}


@pytest.mark.parametrize("name", WITHOUT)
def test_algorithms_without_a_critic_have_no_value_head(tmp_path, model_folder, name):
    """It was built, asked for values (38 % of a text game's playing time), trained and exported."""
    lgym(
        "fit", tmp_path, model_folder, model=f"lgym.modules.{name}", model__init_args__policy__max_new_tokens=3,
        data__agent="helpers.echo.ForgivingEchoAgent", data__group_size=4, data__update_epochs=1, trainer__max_epochs=1,
    )  # fmt: skip
    assert not any("value_head" in key for key in checkpoint(tmp_path)["state_dict"])
    assert not (tmp_path / "version_0" / "adapter" / "value_head.safetensors").exists()
    assert not any(tag.startswith("value/") for tag in scalars(tmp_path))


def test_without_a_critic_nothing_is_computed_for_a_value():
    """The observation that a truncated episode ends on is asked about for its value alone."""
    from lgym.data.table import ContextTable, ReplyTable

    asked = []
    policy = SimpleNamespace(has_critic=False, evaluate=asked.append, values=asked.append)
    for table in (ContextTable(policy), ReplyTable(policy)):
        table.number(test_grpo.CONTEXTS[0])
        table.complete()
        assert table.record()["context_values"].isnan().tolist() == [True]
    assert asked == []


def test_a_policy_without_a_head_says_that_its_values_are_not_known():
    """A zero would be a value like any other."""
    policy = CandidatePolicy()
    llm = tiny.llm()
    llm.value_head = None
    policy.bind(llm)
    _, values = policy.evaluate(test_ppo.CONTEXTS)
    assert values.isnan().all()
    assert not policy.has_critic
