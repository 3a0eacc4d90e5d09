"""The features that the value head reads: standardized over prompts."""

from __future__ import annotations

import pytest
import torch

from helpers.rollouts import candidate_learner, candidate_rollout
from lgym.models.value_head import ValueHead


def prompt_states(prompts: int = 32, size: int = 16) -> torch.Tensor:
    """Hidden states that are nearly the same, as those at the ends of prompts."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, generator=generator) + 0.03 * torch.randn(prompts, size, generator=generator)


def explained(standardized: bool) -> float:
    """Explained variance of values that depend on a direction of the features, after 30 steps."""
    torch.manual_seed(1)
    head, states = ValueHead(16, 32), prompt_states()
    if standardized:
        head.update_features(states)
    returns = (states - states.mean(0))[:, 0] / states[:, 0].std()
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    for _ in range(30):
        optimizer.zero_grad()
        (head(states) - returns).square().mean().backward()
        optimizer.step()
    return 1 - float((head(states) - returns).var() / returns.var())


def test_values_tell_prompts_apart_within_a_few_steps():
    """Without it the head saw one vector, give or take three percent, and learned a constant."""
    assert explained(standardized=True) > 0.5
    assert explained(standardized=False) < 0.1


def test_features_have_mean_0_and_standard_deviation_1_over_prompts():
    """Catches statistics over features, or of one prompt; a feature that hardly varies is not blown up."""
    head, states = ValueHead(16, 4), prompt_states()
    states[:, 3] = 0.5
    head.update_features(states)
    features = (head.norm(states) - head.feature_mean) / head.feature_std
    assert features.mean(0).tolist() == pytest.approx([0.0] * 16, abs=1e-4)
    assert features.std(0).max() == pytest.approx(1.0, abs=1e-4)
    assert features[:, 3].std() <= 1.0


def test_statistics_of_features_follow_by_half_and_one_prompt_says_nothing():
    """Catches features of the first rollout that stand for ever, as the adapters move away from them."""
    head, states = ValueHead(16, 4), prompt_states()
    head.update_features(states[:1])
    assert head.feature_std.tolist() == [1.0] * 16
    head.update_features(states)
    first = head.feature_mean.clone()
    head.update_statistics(torch.tensor([0.0, 1.0]))
    head.update_features(-states)
    torch.testing.assert_close(head.feature_mean, (first + head.norm(-states).mean(0)) / 2)


def test_the_language_model_gets_the_gradient_of_features_as_they_are():
    """Divided features had twenty times the gradient, and moved all hidden states at once: the features were
    cut off, and the value was a constant."""
    head = ValueHead(16, 4)
    with torch.no_grad():
        head.output.weight.fill_(1.0)
        head.hidden.weight.mul_(1e-3)  # tanh is its argument: the gradient is the product of the weights
    states = prompt_states().requires_grad_()
    (plain,) = torch.autograd.grad(head(states).sum(), states)
    head.update_features(states.detach())
    assert float(head.feature_std.max()) < 0.1
    (standardized,) = torch.autograd.grad(head(states).sum(), states)
    torch.testing.assert_close(standardized, plain, rtol=1e-2, atol=1e-6)


def test_features_that_have_gone_far_are_cut_off():
    """Catches values without bounds where a prompt is like no other."""
    head = ValueHead(16, 4)
    head.update_features(prompt_states())
    with torch.no_grad():
        head.output.weight.normal_()
        head.hidden.bias.zero_()
    assert head(100 * torch.randn(8, 16)).isfinite().all()
    seen = []
    head.hidden.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    head(torch.randn(8, 16))
    assert seen[0].abs().max() == 10.0


def test_a_rollout_sets_the_features():
    """Catches a head whose features nobody looks at before it learns."""
    module = candidate_learner()
    head = module.policy.llm.value_head
    rollout = candidate_rollout(module)
    assert head.feature_std.tolist() == [1.0] * len(head.feature_std)
    module.prepare(rollout)
    with module.inference() as policy:
        states = policy.prompt_states(list(rollout.prompts))
    torch.testing.assert_close(head.feature_mean, head.norm(states).mean(0).to(head.feature_mean))
