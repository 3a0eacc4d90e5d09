"""The minibatches of a rollout, as Lightning takes them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

from helpers.collectors import make_collector
from helpers.echo import CountingAgent
from helpers.learners import RecordingLearner
from helpers.prompts import make_prompt, response_batch
from helpers.scripted import FirstCandidatePolicy, text_response
from lgym import distributed
from lgym.data import ReplayBuffer
from lgym.data.data_config import DataConfig
from lgym.data.dataset import EvaluationDataset, InFlight, RolloutDataset, warm_up_episodes
from lgym.data.rollout.collector import PlayProgress
from lgym.data.rollout.training_play import TrainingPlay
from lgym.modules.response_batch import response_batch as batch_of_rollout
from lgym.modules.transitions import rollout_transitions

BATCH = response_batch([make_prompt(text) for text in "abcd"], [0, 1, 2, 3], [text_response("a")] * 4)


def counting_collector():
    return make_collector([gymnasium.make("Counting-v0", max_episode_steps=3)], CountingAgent())


def dataset(learner, replay=None, **changes) -> RolloutDataset:
    settings = DataConfig(
        env="Counting-v0",
        episodes_per_rollout=2,
        update_epochs=2,
        minibatch_size=2,
        exploration_bonus=None,
    )
    return RolloutDataset(
        learner, TrainingPlay(0, counting_collector(), replay), settings, lambda so_far: None, **changes
    )


def test_prompts_that_were_not_acted_on_make_no_minibatch():
    """An observation met only for its value would make a minibatch without turns: NaN metrics, or a crash."""
    rollout = counting_collector().play(FirstCandidatePolicy(), np.random.default_rng(0), turns=8)
    batch, _ = batch_of_rollout(rollout)
    minibatches = list(batch.minibatches(1, range(len(batch.prompt_chains))))
    assert len(minibatches) < len(rollout.prompts)
    assert all(len(minibatch) > 0 for minibatch in minibatches)
    assert sum(map(len, minibatches)) == 8


def test_metrics_of_a_rollout_come_with_its_first_minibatch_only():
    """Otherwise they would be logged once for every step."""
    minibatches = [flight.batch for flight in dataset(RecordingLearner(batch=BATCH))]
    assert len(minibatches) == 4
    assert [minibatch.metrics for minibatch in minibatches] == [{"rollout/turns": 6.0}, None, None, None]


def test_the_number_of_minibatches_is_known_with_the_first():
    """A pass over four prompts, two at a time, and another one."""
    data = dataset(RecordingLearner(batch=BATCH))
    assert data.minibatches is None
    assert [data.minibatches for _ in data] == [4] * 4


class Counted:
    """Turns to imitate that count how often they are asked for."""

    buffers = ("best episodes",)

    def __init__(self, turns=()) -> None:
        self.turns, self.asked = turns, []

    @property
    def has_turns(self):
        return bool(self.turns)

    @property
    def num_minibatches(self):
        return len(self.turns)

    def begin_rollout(self, first):
        self.asked.append(f"first {first}")

    def add_rollout(self, rollout):
        self.asked.append("rollout")

    def demonstration_batches(self, rng):
        yield from self.turns

    def sample(self, rng):
        self.asked.append("sample")


@pytest.mark.parametrize(("coef", "asked"), [(0.0, []), (1.0, ["first False", "rollout", *["sample"] * 4])])
def test_nothing_is_drawn_that_is_not_learned_from(coef, asked):
    """Behind the rollouts of imitation alone, unless it has a weight: an expert may be slow, or fail."""
    sampler = Counted()
    data = dataset(
        RecordingLearner(batch=BATCH, sft_rollouts=2, imitation_weight=coef), sft_sampler=sampler, rollouts=2
    )
    assert len(list(data)) == 4
    assert sampler.asked == asked


def test_a_rollout_of_imitation_has_the_passes_that_the_model_says():
    """Of 3 minibatches each: by the learner here 2 + 3, where a rollout has 2."""
    data = dataset(RecordingLearner(batch=BATCH, sft_rollouts=1), sft_sampler=Counted("abc"))
    turns = [flight.batch.supervised for flight in data]
    assert turns == [*"abc"] * 5
    assert data.minibatches == 15


def test_a_rollout_without_anything_to_imitate_yet_has_no_loss():
    """Such as where the run's own best episodes are all, and none stands out."""
    data = dataset(RecordingLearner(batch=BATCH, sft_rollouts=2), sft_sampler=Counted())
    minibatches = [flight.batch for flight in data]
    assert [minibatch.supervised for minibatch in minibatches] == [None]
    assert data.minibatches == 1
    assert minibatches[0].metrics == {"rollout/turns": 6.0}


def test_replay_plays_until_there_is_enough_and_then_draws_so_often():
    """A rollout has 6 turns: three of them hold 15 and more, and after that one at a time is added."""

    class TransitionLearner(RecordingLearner):
        def prepare(self, rollout):
            super().prepare(rollout)
            return rollout_transitions(rollout, gamma=0.9, n=2), {"rollout/turns": 6.0}

    replay = ReplayBuffer(capacity=100, minibatch_size=5, updates_per_rollout=3, learning_starts=15)
    data = dataset(TransitionLearner(uses_replay=True), replay)
    first = [flight.batch for flight in data]
    assert len(replay) == 18
    assert [len(minibatch) for minibatch in first] == [5, 5, 5]
    assert [minibatch.metrics for minibatch in first] == [{"rollout/turns": 6.0}, None, None]
    assert len(list(data)) == data.minibatches == 3
    assert len(replay) == 24
    assert data.rollouts == 2


def test_each_iteration_plays_a_rollout_up_to_the_limit():
    """Lightning asks for a first batch even where a resumed run has come to its end."""
    learner = RecordingLearner(batch=BATCH)
    data = dataset(learner, rollouts=1, limit=3)
    for _ in range(4):
        list(data)
    assert len(learner.rollouts) == 2
    assert data.rollouts == 3


def test_recorded_numbers_pass_a_precision_plugin_unrounded():
    """A plugin rounds the float tensors that it finds; a batch is unpacked where it is moved to a device."""
    from lightning.pytorch.plugins import HalfPrecision

    batch = response_batch([make_prompt("a")], [0], [text_response("a")])
    converted = HalfPrecision("bf16-true").convert_input(InFlight(batch))
    moved = converted.to(torch.device("cpu"))
    assert moved.old_logprobs.dtype == torch.float32


@pytest.mark.parametrize(
    ("num_envs", "group_size", "episodes", "expected"),
    [(16, 1, 512, 16), (16, 1, 8, 8), (1000, 1, 512, 256), (6, 4, 64, 8), (4, 1, None, None)],
)
def test_a_warm_up_rollout_plays_one_episode_in_each_environment(num_envs, group_size, episodes, expected):
    """In whole groups, of 256 environments at most and never more than a rollout has."""
    turns = num_envs if episodes is None else None
    settings = DataConfig(
        env="Counting-v0",
        num_envs=num_envs,
        group_size=group_size,
        episodes_per_rollout=episodes,
        turns_per_rollout=turns,
    )
    assert warm_up_episodes(settings) == expected


def test_a_process_without_episodes_makes_no_environments():
    """An evaluation may have fewer episodes than a run has processes."""

    def make_collector():
        raise AssertionError("Environments were made.")

    learner = SimpleNamespace(inference=nullcontext)
    idle = EvaluationDataset(learner, make_collector, seed=None, episodes=0, progress=print)
    assert list(idle) == []


def evaluation(returns, *, margin, num_envs=10, episodes=1000):
    """Rollouts of an evaluation whose episodes have these returns, in their order; with how many in each."""
    parts, shown = [], []

    class Played:
        runners = [None] * num_envs

        def play(self, policy, rng, *, episodes, progress):
            first = sum(parts)
            parts.append(episodes)
            played = returns[first : first + episodes]
            progress(PlayProgress(episodes, episodes, rng is None, episodes, sum(played)))
            return SimpleNamespace(episode_returns=torch.tensor(played))

        def close(self):
            pass

    data = EvaluationDataset(
        RecordingLearner(),
        Played,
        seed=0,
        episodes=episodes,
        progress=shown.append,
        outcome=lambda collector, rollout: rollout.episode_returns,
        margin=margin,
    )
    batches = [flight.batch for flight in data]
    assert torch.cat(batches).tolist() == pytest.approx(returns[: sum(parts)])
    ended = [sum(parts[: n + 1]) for n in range(len(parts))]
    assert shown == [PlayProgress(n, episodes, False, n, sum(returns[:n])) for n in ended]
    return parts


def test_an_evaluation_stops_where_its_mean_is_known_well_enough():
    """Returns of 0 and 1 in turn have a standard deviation of a half: 1.96 / 2 / sqrt(n) <= 0.1 from 97
    episodes on, which is the tenth part of ten."""
    coins = [float(n % 2) for n in range(1000)]
    assert evaluation(coins, margin=0.1) == [10] * 10
    assert evaluation(coins, margin=0.05, num_envs=16) == [16] * 25
    assert evaluation(coins, margin=0.01) == [10] * 100  # 9,604 would be needed: it plays all
    assert evaluation(coins, margin=0.1, episodes=25) == [10, 10, 5]


def test_without_a_margin_an_evaluation_is_played_in_one():
    assert evaluation([1.0] * 1000, margin=None) == [1000]


def test_without_a_margin_no_process_waits_for_another(monkeypatch):
    """One that has no episodes is not there to answer."""
    monkeypatch.setattr(distributed, "all_gather_object", pytest.fail)
    assert evaluation([1.0] * 5, margin=None, episodes=5) == [5]


def test_the_first_failures_do_not_end_an_evaluation():
    """After ten of them the standard deviation is 0, and a success in thirty is still to come."""
    assert evaluation([0.0] * 1000, margin=0.01) == [10] * 5
    assert len(evaluation([float(n % 30 == 29) for n in range(1000)], margin=0.03)) > 5


def test_an_evaluation_counts_the_episodes_of_all_processes(monkeypatch):
    """Two processes know the mean after half as many episodes each; they stop together, since each asks for
    the other's returns as often, and one that has no episodes left goes on asking."""
    coins = [float(n % 2) for n in range(1000)]
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather_object", lambda value: [value, value])
    assert evaluation(coins, margin=0.1) == [10] * 5
    asked = []

    def gather(value):
        asked.append(value)
        return [
            value,
            7 if isinstance(value, int) else torch.tensor(coins),
        ]  # the other process has seven parts

    monkeypatch.setattr(distributed, "all_gather_object", gather)
    assert evaluation([0.5] * 20, margin=1e-9, episodes=20) == [10, 10]
    assert len(asked) == 8
