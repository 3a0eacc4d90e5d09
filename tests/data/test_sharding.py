"""What falls to each of several processes, in one: their number and its own are set by hand."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from lgym import ranks
from lgym.data.imitation.sft_sampler import _batch
from lgym.data.sharding import minibatches, rank_state, shard_range, store_from_all_ranks
from lgym.data.validation import require_sound
from modules import test_ppo
from policies.test_generation import CONTEXTS, replies_of
from policies.test_generation import policy as speaking


@pytest.fixture
def process(monkeypatch):
    """Makes this one process of so many."""

    def become(rank: int, size: int) -> None:
        monkeypatch.setattr(ranks, "size", lambda: size)
        monkeypatch.setattr(ranks, "rank", lambda: rank)

    return become


@pytest.mark.parametrize(("total", "size"), [(13, 2), (7, 3), (2, 4), (8, 1)])
def test_shares_cover_everything_once(process, total, size):
    """Catches an episode of an evaluation that two processes play, or none: 13 among 2 are 6 and 7."""
    played = []
    for rank in range(size):
        process(rank, size)
        first, count = shard_range(total)
        assert total // size <= count <= -(-total // size)
        played += range(first, first + count)
    assert played == list(range(total))


def test_a_process_with_fewer_minibatches_fills_up(process, monkeypatch):
    """Catches processes that take different numbers of steps, and fillings that count: 3 contexts, one at a
    time, are three minibatches, where another has five."""
    module = test_ppo.learner(gamma=1.0)
    batch = module.prepare(test_ppo.rollout(module))
    process(0, 2)
    monkeypatch.setattr(ranks, "everyone", lambda own: [own, 5])
    parts = list(minibatches(batch, 1, [0, 1, 2]))
    assert [len(part) > 0 for part in parts] == [True] * 5
    assert [part.scale for part in parts] == pytest.approx([5 * batch.scale] * 3 + [0.0] * 2)
    assert sum(len(part) for part in parts if part.scale) == len(batch)
    # of two and three minibatches: 2 * 2 // 3 rounded up are 2 contexts each, no more can be had
    monkeypatch.setattr(ranks, "everyone", lambda own: [own, 3])
    parts = list(minibatches(batch, 2, [0, 1, 2]))
    assert len(parts) == 3
    assert sum(len(part) for part in parts if part.scale) == len(batch)
    assert {part.scale for part in parts} <= {3 * batch.scale, 0.0}


def test_all_remember_what_each_played(monkeypatch):
    """Catches memories that differ from process to process."""
    monkeypatch.setattr(ranks, "everyone", lambda own: [own, [["theirs"]]])
    stored = []
    store_from_all_ranks(stored.extend)([["ours"], ["ours too"]])
    assert stored == [["ours"], ["ours too"], ["theirs"]]
    assert store_from_all_ranks(None) is None


def test_states_of_another_number_of_processes(process):
    """Catches a state of another process, and a change of the number that nobody is told."""
    process(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rank_state(["first", "second"]) == "second"
    with pytest.warns(UserWarning, match="written by 1 processes and 2 go on"):
        assert rank_state(["first"]) is None
    process(0, 1)
    with pytest.warns(UserWarning, match="written by 2 processes and 1 go on"):
        assert rank_state(["first", "second"]) == "first"


def data_settings(**changes):
    """Settings that go together, but for these."""
    counts = dict.fromkeys(
        ("num_envs", "update_epochs", "minibatch_size", "imitation_size", "eval_episodes"), 1
    )
    sampling = {
        "group_size": 1,
        "dynamic_sampling_groups": 0,
        "episodes_per_rollout": 8,
        "turns_per_rollout": None,
    }
    reading = {"history": 0, "max_observation_tokens": None, "env_timeout": 0.1, "self_imitation": None}
    return SimpleNamespace(**(counts | sampling | reading | changes))


def test_limits_of_the_data_are_refused():
    """Catches a history below 0, a time limit of 0, and self-imitation of turns whose prompts hold what came
    before."""
    for fine in ({}, {"history": "full"}, {"self_imitation": object()}):
        require_sound(data_settings(**fine))
    with pytest.raises(ValueError, match="data.history is -1"):
        require_sound(data_settings(history=-1))
    with pytest.raises(ValueError, match="data.env_timeout is 0 seconds"):
        require_sound(data_settings(env_timeout=0.0))
    for changes in (
        {"episodes_per_rollout": None, "turns_per_rollout": 8},
        {"history": 1},
        {"history": "full"},
    ):
        with pytest.raises(ValueError, match="data.self_imitation keeps whole episodes"):
            require_sound(data_settings(self_imitation=object(), **changes))


def test_imitated_turns_count_by_token():
    """Catches a scale that is not one over the tokens, turns out of the order of their contexts, and padding
    that counts."""
    rows, replies = replies_of(speaking(), count=5)
    batch = _batch([(CONTEXTS[row], reply) for row, reply in zip(rows, replies, strict=True)])
    assert batch.rows.tolist() == [0, 0, 1, 1, 2]  # 0 1 2 0 1, sorted
    assert batch.replies == tuple(replies[i].ids for i in (0, 3, 1, 4, 2))
    assert batch.mask.sum(1).tolist() == [len(replies[i].ids) for i in (0, 3, 1, 4, 2)]
    assert batch.scale == pytest.approx(1 / sum(len(reply.ids) for reply in replies))
    assert torch.equal(batch.advantages, batch.mask.float())
    assert batch.choices.tolist() == [-1] * 5
