"""The shards of several processes, in one: their number and its own are set by hand."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from helpers.prompts import make_prompt, response_batch
from helpers.scripted import text_response
from lgym import distributed
from lgym.data.sharding import minibatches, rank_state, shard_range, store_from_all_ranks


@pytest.fixture
def process(monkeypatch):
    """Makes this one process of so many."""

    def become(rank: int, size: int) -> None:
        monkeypatch.setattr(distributed, "world_size", lambda: size)
        monkeypatch.setattr(distributed, "rank", lambda: rank)

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
    """Catches processes that take different numbers of steps, and fillings that count: 3 prompts, one at a
    time, are three minibatches, where another has five."""
    prompts = [make_prompt(text) for text in "abc"]
    batch = replace(response_batch(prompts, [0, 0, 1, 1, 2], [text_response("a")] * 5), by_prompt=True)
    process(0, 2)
    monkeypatch.setattr(distributed, "all_gather_object", lambda count: [count, 5])
    parts = list(minibatches(batch, 1, [0, 1, 2]))
    assert [len(part) > 0 for part in parts] == [True] * 5
    assert [part.loss_scale for part in parts] == pytest.approx([5 * batch.loss_scale] * 3 + [0.0] * 2)
    assert sum(part.num_turns for part in parts) == len(batch)
    # of two and three minibatches: 2 * 2 // 3 rounded up are 2 prompts each, no more can be had
    monkeypatch.setattr(distributed, "all_gather_object", lambda count: [count, 3])
    parts = list(minibatches(batch, 2, [0, 1, 2]))
    assert len(parts) == 3
    assert sum(part.num_turns for part in parts) == len(batch)
    assert {part.loss_scale for part in parts} <= {3 * batch.loss_scale, 0.0}


def test_episodes_of_all_processes_are_stored_in_each(monkeypatch):
    """Catches memories that differ from process to process."""
    monkeypatch.setattr(distributed, "all_gather_object", lambda episodes: [episodes, [["theirs"]]])
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
