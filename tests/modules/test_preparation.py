"""From a rollout to a batch: the reference's log-probabilities, and the divergence from it in the rewards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.rollouts import (
    CANDIDATE_PROMPTS,
    RESPONSE_IDS,
    candidate_learner,
    candidate_rollout,
    text_learner,
    text_rollout,
)
from lgym.functional import categorical_kl, split_half_reliability
from lgym.modules import GRPO, PPO, RLOO
from lgym.modules.preparation import evaluate_batch, turns_to_learn_from
from lgym.modules.response_batch import response_batch
from lgym.policies.distribution_cache import choice_response


def test_the_reliability_of_a_choice_compares_the_halves_of_the_episodes():
    """Catches halves of the turns in place of the episodes', whose turns are not independent. Free text has no
    actions to compare."""
    module = candidate_learner(gamma=1.0, gae_lambda=1.0)
    rollout = candidate_rollout(module)
    batch, metrics = module.prepare(rollout)
    turns = turns_to_learn_from(rollout, module.loss_config, module.reference)
    halves = turns.episode_index[turns.order] % 2
    expected = split_half_reliability(batch.advantages[:, 0], batch.prompt_index, batch.choices, halves)
    assert metrics["policy/advantage_reliability"] == pytest.approx(float(expected))
    _, metrics = text_learner(PPO).prepare(text_rollout())
    assert "policy/advantage_reliability" not in metrics


def test_the_reference_is_the_model_without_adapters():
    """At kl_coef 1 the loss is that at 0 plus the mean k3 of each response, and turns without advantage
    count."""
    module = text_learner(GRPO, kl_coef=1.0)
    batch, _ = module.prepare(text_rollout())
    assert len(batch) == 6
    with torch.no_grad(), module.policy.llm.reference():
        reference = module.policy.evaluate_actions(batch)
    torch.testing.assert_close(batch.ref_logprobs, reference.logprobs.float(), rtol=1e-4, atol=1e-5)
    with_kl, metrics = module.loss(batch)
    without, _ = module.loss(replace(batch, ref_logprobs=None))
    assert float((with_kl - without).detach()) > 1e-3
    assert float(metrics["policy/ref_kl"]) > 0


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_a_whole_batch_is_evaluated_as_the_policy_does(default):
    """The values that `advantage_level: token` starts from, and the log-probabilities of the reference, also
    where the trainer's precision (64-true) makes new tensors doubles."""
    module = text_learner(PPO, advantage_level="token")
    batch, _ = response_batch(text_rollout())
    torch.set_default_dtype(default)
    with module.inference() as policy:
        found = evaluate_batch(policy, batch)
    with torch.no_grad():
        expected = module.policy.evaluate_actions(batch)
    mask = batch.action_mask
    torch.testing.assert_close(found.values * mask, expected.values.float() * mask, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.logprobs, expected.logprobs.float(), rtol=1e-4, atol=1e-5)


def test_a_divergence_in_the_rewards_is_subtracted_before_advantages():
    """Each turn's reward is lower by its tokens' k1 to the reference, and the loss has no such term. The metric
    is the mean over the 13 tokens."""
    module = text_learner(RLOO, kl_coef=0.5, kl_in="reward")
    turns = turns_to_learn_from(text_rollout(), module.loss_config, module.reference)
    batch = turns.batch
    assert batch.ref_logprobs is None
    with torch.no_grad(), module.policy.llm.reference():
        reference = module.policy.evaluate_actions(batch).logprobs
    rewards = dict(zip(RESPONSE_IDS, (1.0, 2.0, 0.0, 1.0, 0.5, 0.5), strict=True))
    rows = zip(batch.response_ids, batch.action_mask, batch.old_logprobs, reference, strict=True)
    for response, mask, old, ref in rows:
        rewards[response] -= 0.5 * float((old - ref)[mask].sum())
    first, second, third, fourth, *rest = (rewards[response] for response in RESPONSE_IDS)
    assert turns.episode_returns.tolist() == pytest.approx([first + second, third + fourth, *rest], rel=1e-4)
    _, metrics = module.prepare(text_rollout())
    assert metrics["policy/ref_kl"] == pytest.approx((5.0 - sum(rewards.values())) / (0.5 * 13), rel=1e-4)


def test_a_divergence_in_the_rewards_pulls_toward_the_reference():
    """Over all choices of a prompt, by their probabilities, the gradient of what is learned is that of the
    divergence. That of k3 is about 0 near the reference."""
    module = candidate_learner(kl_coef=1.0, kl_in="reward")
    prompt = CANDIDATE_PROMPTS[1]
    rewards = {}
    for choice in range(3):
        rollout = candidate_rollout(module)
        distribution = rollout.responses[1].candidate_logprobs
        responses = [*rollout.responses]
        responses[1] = choice_response(prompt, choice, distribution)
        turns = turns_to_learn_from(
            replace(rollout, responses=tuple(responses)), module.loss_config, module.reference
        )
        rewards[choice] = float((turns.rewards - rollout.rewards)[0, 1])
    with module.reference() as policy:
        reference = policy.distributions([prompt])[0]
    parameters = [p for name, p in module.named_parameters() if "lora_B" in name]
    logprobs = module.policy([prompt])[0][0]
    learned = -(logprobs.exp() * torch.tensor([rewards[choice] for choice in range(3)])).sum()
    wanted = categorical_kl(logprobs, reference.to(logprobs.dtype))
    gradients, expected = (
        torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (learned, wanted)
    )
    assert max(float(gradient.abs().max()) for gradient in expected) > 1e-3
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-3, atol=1e-5)
