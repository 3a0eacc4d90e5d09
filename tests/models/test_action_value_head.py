"""The twin action-value head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.prompts import make_prompt
from helpers.rollouts import candidate_learner
from lgym.models.action_value_head import ActionValueHead, text_embeddings

PROMPTS = [make_prompt("red", "left", "right"), make_prompt("blue sky", "up", "down", "go on")]


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head():
    torch.manual_seed(0)
    made = ActionValueHead(8, 5)
    with torch.no_grad():
        made.output.weight.normal_()
        made.output.bias.normal_()
    return made


def test_it_starts_at_the_mean():
    fresh = ActionValueHead(8, 5)
    fresh.update_statistics(torch.tensor([1.0, 3.0]))
    q = fresh.action_values(numbers(4, 8), numbers(4, 3, 8, seed=1))
    assert q.shape == (4, 3, 2)
    assert torch.equal(q, torch.full_like(q, 2.0))


def test_each_estimate_has_numbers_of_its_own():
    """A gradient of the one leaves the other alone."""
    one = head()
    q = one.action_values(numbers(4, 8), numbers(4, 3, 8, seed=1))
    assert (q[..., 0] - q[..., 1]).abs().min() > 1e-3
    q[..., 0].sum().backward()
    for layer in (one.hidden, one.action):
        first, second = layer.weight.grad.split(5)
        assert first.abs().max() > 0
        assert second.abs().max() == 0


def test_it_tells_candidates_and_states_apart():
    q = head().action_values(numbers(4, 8), numbers(1, 3, 8, seed=1).expand(4, 3, 8))
    assert len(set(q[..., 0].flatten().tolist())) == 12


def test_new_statistics_change_no_value():
    one, states, candidates = head(), numbers(4, 8), numbers(4, 3, 8, seed=1)
    one.update_statistics(torch.tensor([0.0, 10.0]))
    before = one.action_values(states, candidates)
    one.update_statistics(torch.tensor([-50.0, 200.0]))
    assert one.std > 10
    torch.testing.assert_close(one.action_values(states, candidates), before)


def test_embeddings_are_means_over_tokens():
    embed = nn.Embedding.from_pretrained(torch.arange(8.0).view(4, 2))
    texts = [[(0,), (1, 3)], [(2, 2, 2)]]
    expected = [[[0.0, 1.0], [4.0, 5.0]], [[4.0, 5.0], [0.0, 0.0]]]
    assert text_embeddings(embed, texts).tolist() == expected


def test_its_values_are_those_of_the_prompts_and_their_candidates():
    """Whatever other prompts and longer lists are computed beside them."""
    policy = candidate_learner().policy
    policy.llm.action_value_head = ActionValueHead.beside(policy.llm.value_head)
    with torch.no_grad():
        policy.llm.action_value_head.output.weight.normal_(generator=torch.Generator().manual_seed(0))
    logprobs, values, together = policy.action_values(PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        alone_logprobs, alone_values, alone = policy.action_values([prompt])
        count = len(prompt.candidates)
        torch.testing.assert_close(together[row, :count], alone[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logprobs[row, :count], alone_logprobs[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values[row], alone_values[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("detach", [False, True])
def test_detached_heads_leave_the_language_model_alone(detach):
    policy = candidate_learner().policy
    policy.llm.action_value_head = ActionValueHead.beside(policy.llm.value_head)
    policy.detach_value = detach
    with torch.no_grad():
        policy.llm.action_value_head.output.weight.fill_(0.1)
    _, _, q = policy.action_values(PROMPTS)
    q.sum().backward()
    adapters = [p for name, p in policy.llm.model.named_parameters() if p.requires_grad]
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in adapters) != detach
