"""The replay buffer that draws by errors."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from helpers.lookup import GAMMA, Lookup, lake
from helpers.transitions import chain
from lgym.data import PrioritizedReplayBuffer
from lgym.data.prioritized_replay import SMALLEST_ERROR
from lgym.modules import DQN, SAC

ERRORS = torch.tensor([0.0, 1.0, 2.0, 5.0]) - SMALLEST_ERROR


def buffer(size: int = 4000, **settings) -> PrioritizedReplayBuffer:
    return PrioritizedReplayBuffer(capacity=4000, minibatch_size=size, learning_starts=1, **settings)


def with_errors(**settings) -> PrioritizedReplayBuffer:
    """Four transitions, whose rewards are their numbers, with p = 0, 1, 2 and 5."""
    made = buffer(**settings)
    made.add(chain(0, 4))
    batch = made.sample(np.random.default_rng(0))
    batch.take_errors(ERRORS[batch.rewards.long()])
    return made


def drawn(batch) -> list[float]:
    return (torch.bincount(batch.rewards.long(), minlength=4) / len(batch)).tolist()


def test_new_transitions_are_drawn_equally_often():
    made = buffer()
    made.add(chain(0, 4))
    batch = made.sample(np.random.default_rng(1))
    assert drawn(batch) == pytest.approx([0.25] * 4, abs=0.03)
    assert torch.equal(batch.weights, torch.ones(4000))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_it_draws_in_proportion_to_the_errors_power(alpha):
    batch = with_errors(alpha=alpha).sample(np.random.default_rng(1))
    powers = np.array([0.0, 1.0, 2.0, 5.0]) ** alpha
    assert drawn(batch) == pytest.approx((powers / powers.sum()).tolist(), abs=0.03)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_make_up_for_what_is_drawn_more_often(beta):
    batch = with_errors(alpha=1.0, beta=beta).sample(np.random.default_rng(1))
    expected = {1: 1.0, 2: 0.5**beta, 3: 0.2**beta}
    for number, weight in expected.items():
        assert batch.weights[batch.rewards == number].tolist() == pytest.approx(
            [weight] * int((batch.rewards == number).sum())
        )


def test_with_full_weights_the_mean_is_that_of_all_transitions():
    """Of importance sampling: E_P[w x] is in proportion to the plain mean."""
    made = with_errors(alpha=1.0, beta=1.0)
    made.add(chain(4, 4))
    batch = made.sample(np.random.default_rng(2))
    rewards, weights = batch.rewards, batch.weights
    assert float((weights * rewards).sum() / weights.sum()) == pytest.approx(
        28 / 7, abs=0.2
    )  # but for the first, p = 0


def test_new_transitions_have_the_largest_priority():
    made = with_errors(alpha=1.0)
    made.add(chain(4, 1))
    rewards = made.sample(np.random.default_rng(1)).rewards
    assert float((rewards == 4).float().mean()) == pytest.approx(5 / 13, abs=0.03)


def test_the_oldest_leave_with_their_priorities():
    made = PrioritizedReplayBuffer(capacity=4, minibatch_size=4, learning_starts=1, alpha=1.0)
    made.add(chain(0, 4))
    batch = made.sample(np.random.default_rng(0))
    batch.take_errors(torch.zeros(4))
    made.add(chain(4, 3))
    assert len(made) == 4
    assert set(made.sample(np.random.default_rng(0)).rewards.tolist()) <= {3.0, 4.0, 5.0, 6.0}


def test_a_checkpoint_holds_the_priorities():
    made, restored = with_errors(), buffer()
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    ours, theirs = (each.sample(np.random.default_rng(3)) for each in (made, restored))
    assert torch.equal(ours.rewards, theirs.rewards)
    assert torch.equal(ours.weights, theirs.weights)


@pytest.mark.parametrize("algorithm", [DQN, SAC])
def test_the_learner_tells_the_errors_and_weighs_its_loss(algorithm):
    """The loss of a minibatch is that of its transitions by their weights; behind it those with larger errors
    are drawn more often."""
    batch, _ = lake(is_slippery=False)
    module = algorithm(policy=Lookup(16, 4), gamma=GAMMA, polyak=0.5)
    made = PrioritizedReplayBuffer(capacity=4000, minibatch_size=4000, learning_starts=1, alpha=1.0, beta=1.0)
    made.add(batch)
    sample = made.sample(np.random.default_rng(0))
    total, metrics = module.loss(sample)
    parts, _ = module.objective(sample)
    assert metrics["q/td_error"].ndim == 0
    again = made.sample(np.random.default_rng(0))
    paid = float((again.rewards > 0).double().mean())
    assert float((sample.rewards > 0).double().mean()) < 0.02
    assert paid > 0.5
    weighted, _ = module.loss(again)
    parts, _ = module.objective(again)
    expected = sum((again.weights * part).mean() for part in parts.values())
    assert weighted.item() == pytest.approx(expected.item())
    assert total.item() != weighted.item()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alpha": 1.5}, "alpha is 1.5; it must be from 0 to 1"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"balanced": True}, "balanced draws prompts equally often"),
    ],
)
def test_what_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        PrioritizedReplayBuffer(**settings)


def test_an_error_that_is_not_finite_leaves_the_priority():
    """One minibatch without a finite loss made every later draw fail, also behind a rollback."""
    made = with_errors(alpha=1.0)
    batch = made.sample(np.random.default_rng(1))
    errors = ERRORS[batch.rewards.long()]
    errors[:2] = torch.tensor([float("nan"), float("inf")])
    batch.take_errors(errors)
    assert drawn(made.sample(np.random.default_rng(1))) == pytest.approx([0.0, 1 / 8, 2 / 8, 5 / 8], abs=0.03)
