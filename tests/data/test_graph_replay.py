"""The replay buffer that backs values up through its transitions."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from helpers.lookup import GAMMA, Lookup, fitted, lake
from helpers.transitions import chain
from lgym.data import GraphReplayBuffer
from lgym.modules import DQN


def buffer(size: int = 4000, **settings) -> GraphReplayBuffer:
    return GraphReplayBuffer(capacity=4000, minibatch_size=size, learning_starts=1, **settings)


def values(batch) -> dict[int, float]:
    """By state."""
    return {
        int(batch.prompts[number].observation_text.split()[-1]): float(value)
        for number, value in zip(batch.prompt_index, batch.rewards, strict=True)
    }


def test_choices_are_paid_what_they_are_worth():
    """Rewards 0, 1, 2 and a discount of 0.9: 2, 1 + 0.9 * 2 = 2.8, 0.9 * 2.8 = 2.52."""
    made = buffer()
    made.add(chain(0, 3))
    batch = made.sample(np.random.default_rng(0))
    assert values(batch) == pytest.approx({0: 2.52, 1: 2.8, 2: 2.0})
    assert (batch.next_prompt_index == -1).all()
    assert (batch.discounts == 0).all()


def test_what_is_added_counts_from_the_next_minibatch_on():
    """State 2 is met again, and leads to 3 and 4: (2 + 2 + 0.9 * (3 + 0.9 * 4)) / 2 = 4.97."""
    made = buffer()
    made.add(chain(0, 3))
    made.sample(np.random.default_rng(0))
    made.add(chain(2, 3))
    assert values(made.sample(np.random.default_rng(0)))[2] == pytest.approx(4.97)


def test_one_that_was_saved_goes_on_as_it_was():
    made, other = buffer(8), buffer(8)
    made.add(chain(0, 5))
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    other.add(chain(7, 2))
    other.sample(np.random.default_rng(1))
    other.load_state_dict(torch.load(file, weights_only=True))
    first, second = (which.sample(np.random.default_rng(1)) for which in (made, other))
    assert torch.equal(first.rewards, second.rewards)
    assert [p.token_ids for p in first.prompts] == [p.token_ids for p in second.prompts]


@pytest.mark.parametrize("is_slippery", [False, True])
def test_dqn_learns_the_optimal_values_without_a_second_target_network(is_slippery):
    """Of every transition of Frozen Lake, all of which the buffer holds."""
    transitions, optimal = lake(is_slippery)
    made = buffer()
    made.add(transitions)
    q = fitted(DQN(policy=Lookup(16, 4), gamma=GAMMA, beta=1.0), made.sample(np.random.default_rng(0)), 1)
    torch.testing.assert_close(q, torch.from_numpy(optimal), atol=1e-4, rtol=0)


@pytest.mark.parametrize("is_slippery", [False, True])
def test_dqn_distills_the_optimal_policy_and_its_values(is_slippery):
    """π is the softmax of the optimal values, and V their mean under it."""
    transitions, optimal = lake(is_slippery)
    made = buffer()
    made.add(transitions)
    module = DQN(policy=Lookup(16, 4), gamma=GAMMA, beta=0.1, loss="distillation")
    fitted(module, made.sample(np.random.default_rng(0)), 1)
    with torch.no_grad():
        logprobs, values = module.policy(transitions.prompts)
    wanted = (torch.from_numpy(optimal) / 0.1).softmax(-1)
    torch.testing.assert_close(logprobs.exp(), wanted, atol=1e-4, rtol=0)
    torch.testing.assert_close(values, (wanted * torch.from_numpy(optimal)).sum(-1), atol=1e-4, rtol=0)


def test_inertia_adds_up_what_is_right_in_rollout_after_rollout():
    """Behind n target networks log π is (1 + α + ... + α^(n-1)) Q* / β, but for a constant."""
    transitions, optimal = lake(False)
    made = buffer()
    made.add(transitions)
    module = DQN(policy=Lookup(16, 4), gamma=GAMMA, beta=0.5, loss="distillation", inertia=0.5)
    fitted(module, made.sample(np.random.default_rng(0)), 3)
    with torch.no_grad():
        logprobs, _ = module.policy(transitions.prompts)
    wanted = (torch.from_numpy(optimal) * (1 + 0.5 + 0.25) / 0.5).softmax(-1)
    torch.testing.assert_close(logprobs.exp(), wanted, atol=1e-4, rtol=0)
