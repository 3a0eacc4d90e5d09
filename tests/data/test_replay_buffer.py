"""The replay buffer."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from helpers.transitions import chain
from lgym.data import ReplayBuffer
from lgym.data.rollout.training_play import TrainingPlay
from lgym.transitions import COLUMNS, TransitionBatch
from lgym.types import ConfigError


def held(buffer: ReplayBuffer) -> TransitionBatch:
    return buffer._batch()


def test_each_distinct_prompt_is_kept_once():
    buffer = ReplayBuffer(capacity=100, minibatch_size=1, learning_starts=1)
    buffer.add(chain(0, 4))
    buffer.add(chain(2, 4))
    assert len(buffer) == 8
    assert buffer.num_prompts == 6
    whole = held(buffer)
    state = [whole.prompts[i].token_ids[0] - 60 for i in whole.prompt_index.tolist()]
    assert state == [0, 1, 2, 3, 2, 3, 4, 5]
    assert whole.rewards.tolist() == [float(number) for number in state]
    following = [
        None if i < 0 else whole.prompts[i].token_ids[0] - 60 for i in whole.next_prompt_index.tolist()
    ]
    assert following == [1, 2, 3, None, 3, 4, 5, None]


def test_the_oldest_leave_first_and_their_prompts_with_them():
    buffer = ReplayBuffer(capacity=6, minibatch_size=1, learning_starts=1)
    for first in range(0, 40, 4):
        buffer.add(chain(first, 4))
    assert held(buffer).rewards.tolist() == [34.0, 35.0, 36.0, 37.0, 38.0, 39.0]
    assert buffer.num_prompts <= 12


def test_a_minibatch_is_drawn_from_all():
    buffer = ReplayBuffer(capacity=100, minibatch_size=64, learning_starts=1)
    buffer.add(chain(0, 4))
    rng = np.random.default_rng(0)
    counts = torch.zeros(4)
    for _ in range(100):
        minibatch = buffer.sample(rng)
        assert len(minibatch) == 64
        assert len(minibatch.prompts) <= 4
        counts += torch.bincount(minibatch.rewards.long(), minlength=4)
    assert float((counts / 6400 - 0.25).abs().max()) < 0.03


def test_balanced_it_draws_every_pair_of_prompt_and_choice_equally_often():
    """Four pairs, one of them met 97 times in 100: each is a quarter of what is drawn; of the same pair both
    outcomes are. Plain, that one is nearly all of it."""
    often, once = chain(0, 1), chain(1, 3)
    shares = {}
    for balanced in (False, True):
        buffer = ReplayBuffer(capacity=4000, minibatch_size=400, learning_starts=1, balanced=balanced)
        for reward in (0.5, *[0.0] * 96):
            buffer.add(replace(often, rewards=torch.tensor([reward])))
        buffer.add(once)
        rng = np.random.default_rng(0)
        batches = [buffer.sample(rng) for _ in range(10)]
        states = torch.cat([state_numbers(batch) for batch in batches])
        shares[balanced] = [float((states == state).float().mean()) for state in range(4)]
        assert set(torch.cat([batch.rewards for batch in batches])[states == 0].tolist()) == {0.0, 0.5}
    assert shares[False][0] > 0.95
    assert shares[True] == pytest.approx([0.25] * 4)


def state_numbers(batch: TransitionBatch) -> torch.Tensor:
    """[B], as `chain` numbers them."""
    return torch.tensor([batch.prompts[i].token_ids[0] - 60 for i in batch.prompt_index.tolist()])


def test_balanced_it_draws_a_prompt_with_all_choices_that_were_made_there():
    """Six prompts with two choices each: a minibatch of four has two of them, any two."""
    buffer = ReplayBuffer(capacity=100, minibatch_size=4, learning_starts=1, balanced=True)
    made = chain(0, 6)
    buffer.add(made)
    buffer.add(replace(made, choices=1 - made.choices))
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(50):
        batch = buffer.sample(rng)
        pairs = set(zip(state_numbers(batch).tolist(), batch.choices.tolist(), strict=True))
        assert len(pairs) == 4
        drawn.append({state for state, _ in pairs})
        assert len(drawn[-1]) == 2
    assert set.union(*drawn) == set(range(6))


def test_a_checkpoint_holds_it_exactly():
    buffer, restored = (ReplayBuffer(capacity=100, minibatch_size=8, learning_starts=1) for _ in range(2))
    buffer.add(chain(0, 5))
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    ours, theirs = (each.sample(np.random.default_rng(3)) for each in (buffer, restored))
    assert ours.prompts == theirs.prompts
    for name in COLUMNS:
        assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_an_empty_one_is_restored():
    buffer = ReplayBuffer()
    buffer.load_state_dict(ReplayBuffer().state_dict())
    assert len(buffer) == 0


def test_a_checkpoint_of_a_run_without_a_buffer_is_refused():
    """Such as that of PPO, where DQN is to go on from it."""
    state = TrainingPlay(0, SimpleNamespace(state_dict=dict)).state_dict()
    with pytest.raises(ConfigError, match="The checkpoint has no replay buffer"):
        TrainingPlay(0, None, ReplayBuffer()).load_state_dict(state)


def test_what_an_older_version_wrote_is_refused():
    buffer = ReplayBuffer(capacity=100, minibatch_size=8, learning_starts=1)
    buffer.add(chain(0, 5))
    state = buffer.state_dict()
    del state["columns"]["next_values"]
    with pytest.raises(ConfigError, match="has no next_values: an older version of lgym wrote it"):
        buffer.load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"updates_per_rollout": 0}, "updates_per_rollout is 0"),
        ({"capacity": 50}, "capacity is 50 and minibatch_size is 96: .* Set capacity to 96"),
        ({"capacity": 500}, "capacity is 500 and learning_starts is 1000"),
    ],
)
def test_what_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        ReplayBuffer(**settings)
