"""Bonuses for seldom seen observations: what is counted, what is paid, and what a run keeps of it."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
import torch

from helpers.collectors import make_collector
from helpers.echo import CountingAgent, EchoAgent
from helpers.learners import RecordingLearner, attach
from helpers.rollouts import text_rollout
from helpers.scripted import FirstCandidatePolicy
from helpers.two_processes import in_two_processes
from lgym.data import ExplorationBonus, RolloutDataModule
from lgym.data.rollout import exploration_bonus
from lgym.data.rollout.exploration_bonus import text_digest
from lgym.types import ConfigError

VISITS = torch.tensor([[5, 0, 6], [5, 6, 0]])
"""The episodes of `text_rollout` are 0, 0, 2 and 1, 1, 3: two of them come to 5, two to 6."""


def visited(visits=VISITS, **changes):
    return text_rollout(first_visits=visits, **changes)


def constant(**settings) -> ExplorationBonus:
    return ExplorationBonus(**{"coef": 0.5, "anneal": None, **settings})


def test_the_bonuses_of_a_rollout_by_hand():
    """Each of 5 and 6 was visited by two episodes, so a visit is worth 1/sqrt(2). Four visits in four episodes
    are 1/sqrt(2) an episode: M. The largest return is 3. A visit pays 0.5 * 3 / M / sqrt(2) = 1.5."""
    bonuses = constant().bonuses(visited(), 0, None)
    assert torch.allclose(bonuses, torch.tensor([[1.5, 0.0, 1.5], [1.5, 1.5, 0.0]]))


def test_bonuses_fall_as_counts_grow():
    """With the same visits again N is 4: 1/sqrt(4) by M = 1/sqrt(2) is 1/sqrt(2) of the first. A new
    observation at the place of one 5 has N = 1, twice as much as the rest."""
    bonus = constant()
    first, second = (bonus.bonuses(visited(), 0, None) for _ in range(2))
    assert torch.allclose(second, first / 2**0.5)
    third = bonus.bonuses(visited(torch.tensor([[7, 0, 6], [0, 0, 0]])), 0, None)
    assert third[0, 0] / third[0, 2] == pytest.approx(5**0.5)


def test_an_average_episode_is_paid_the_weight_at_most():
    """Observations that are all new, as numbers without rounding are, would pay for every turn: a rollout
    with twice as many visits in each episode pays as much as one with half of them."""
    few = constant().bonuses(visited(torch.tensor([[1, 0, 2], [3, 0, 4]])), 0, None)
    many = constant().bonuses(visited(torch.tensor([[1, 2, 3], [4, 5, 6]])), 0, None)
    assert float(few.sum()) == pytest.approx(float(many.sum())) == pytest.approx(4 * 0.5 * 3)
    bonus = constant()
    bonus.bonuses(visited(torch.tensor([[1, 0, 0], [0, 0, 0]])), 0, None)
    assert float(
        bonus.bonuses(visited(torch.tensor([[2, 3, 4], [5, 6, 7]])), 0, None).sum()
    ) == pytest.approx(6)


def test_without_any_reward_the_size_is_one():
    """The case that bonuses are for. And where nothing is visited there is nothing to divide by."""
    nothing = torch.zeros(2, 3)
    assert float(constant().bonuses(visited(rewards=nothing), 0, None).sum()) == pytest.approx(4 * 0.5)
    assert not constant().bonuses(visited(VISITS * 0), 0, None).any()


@pytest.mark.parametrize(
    ("anneal", "limit", "expected"),
    [
        (None, None, [1.0, 1.0, 1.0]),
        (4, None, [1.0, 0.5, 0.0]),
        (0.5, 8, [1.0, 0.5, 0.0]),
        (1, 8, [1.0, 0.75, 0.5]),
        (0.1, 5, [1.0, 0.0, 0.0]),
        ("auto", 8, [1.0, 0.5, 0.0]),
        ("auto", -1, [1.0, 1.0, 1.0]),
    ],
)
def test_the_weight_falls_linearly_to_zero(anneal, limit, expected):
    """After 0, 2 and 4 rollouts."""
    bonus = ExplorationBonus(coef=2.0, anneal=anneal)
    assert [bonus.weight(n, limit) for n in (0, 2, 4)] == pytest.approx([2 * x for x in expected])
    assert bonus.bonuses(visited(), 4, limit).any() == (expected[-1] > 0)


def test_impossible_settings_are_refused():
    """A weight of 0 would do nothing; a fraction needs a whole."""
    with pytest.raises(ConfigError, match="coef is 0"):
        ExplorationBonus(coef=0)
    with pytest.raises(ConfigError, match="anneal is -1"):
        ExplorationBonus(anneal=-1)
    data = attach(RolloutDataModule(env="Echo-v0", agent=EchoAgent(), episodes_per_rollout=8), None)
    data.exploration_bonus = ExplorationBonus(anneal=0.5)
    data.trainer.lightning_module = RecordingLearner()
    data.setup("fit")
    data.trainer.max_epochs = -1
    with pytest.raises(ConfigError, match=r"anneal is 0.5, a fraction of trainer.max_epochs, which is -1"):
        data.setup("fit")
    data.setup("validate")


def test_first_visits_are_those_of_an_episode():
    """Three turns of Echo among three words: whatever was there before in the episode, its first observation
    too, is no first visit. Each episode counts anew."""
    envs = [gymnasium.make("Echo-v0", turns=6) for _ in range(2)]
    rollout = make_collector(envs, EchoAgent()).play(
        FirstCandidatePolicy(), np.random.default_rng(0), episodes=6
    )
    seen: dict[int, set[str]] = {}
    for row, column in rollout.mask.nonzero().tolist():
        text = rollout.prompts[int(rollout.prompt_index[row, column])].observation_text
        visits = seen.setdefault(int(rollout.episode_ids[row, column]), set())
        before = rollout.first_visits[row, column - 1] if column and visits else None
        assert before is None or int(before) == (0 if text in visits else text_digest(text))
        visits.add(text)
        if rollout.terminated[row, column]:
            assert rollout.first_visits[row, column] == 0
    assert not rollout.first_visits[~rollout.mask].any()
    assert len(seen) == 6


def test_a_restored_episode_knows_where_it_has_been():
    """Resumed in mid-episode, with three words of which all may have been seen."""

    def player():
        return make_collector([gymnasium.make("Echo-v0", turns=40)], EchoAgent())

    old, new = player(), player()
    old.play(FirstCandidatePolicy(), np.random.default_rng(0), turns=20)
    new.load_state_dict(old.state_dict())
    rollout = new.play(FirstCandidatePolicy(), np.random.default_rng(0), turns=10)
    assert not rollout.first_visits.any()


def test_state_survives_a_checkpoint():
    """Plain numbers, after which the next rollout pays the same."""
    old, new = constant(), constant()
    old.bonuses(visited(), 0, None)
    new.load_state_dict(json.loads(json.dumps(old.state_dict())))
    assert torch.equal(new.bonuses(visited(), 0, None), old.bonuses(visited(), 0, None))


def test_the_least_visited_half_is_forgotten_beyond_the_capacity(monkeypatch):
    """Numbers without rounding would fill memory and checkpoints."""
    monkeypatch.setattr(exploration_bonus, "CAPACITY", 4)
    bonus = constant()
    bonus.bonuses(visited(), 0, None)
    bonus.bonuses(visited(torch.tensor([[1, 2, 3], [6, 6, 0]])), 0, None)
    assert dict(zip(*(bonus.state_dict()[name] for name in ("digests", "counts")), strict=True)) == {
        5: 2,
        6: 4,
    }


def test_digests_are_the_same_in_every_process_and_run():
    """Python's own hash is not. A lone surrogate is a text as any other."""
    assert text_digest("position: 0.5") == 4978982835803992820
    assert text_digest("\ud800") != text_digest("") != 0


def played(bonus, **changes) -> tuple[RolloutDataModule, RecordingLearner]:
    settings = {"env": "Counting-v0", "agent": CountingAgent(), "max_episode_steps": 3, "num_envs": 2}
    data = RolloutDataModule(**settings, episodes_per_rollout=4, exploration_bonus=bonus, **changes)
    learner = RecordingLearner()
    attach(data, learner)
    return data, learner


def test_training_pays_and_evaluation_does_not():
    """The environment's rewards are left alone in both: 1, 2 and 3."""
    data, _ = played(ExplorationBonus(coef=0.5))
    rollout = data.train_dataloader().dataset.play_rollout()
    assert float(rollout.bonuses.sum()) == pytest.approx(4 * 0.5 * 6)
    assert rollout.rewards[rollout.mask].tolist() == [1, 2, 3] * 4
    assert torch.equal(rollout.learned_rewards, rollout.rewards + rollout.bonuses)
    evaluated = data.make_collector("validate").play(FirstCandidatePolicy(), None, episodes=4)
    assert evaluated.bonuses is None
    assert torch.equal(evaluated.learned_rewards, evaluated.rewards)
    assert len(data.state_dict()["exploration_bonus"]["digests"]) > 0
    without, _ = played(None)
    assert without.train_dataloader().dataset.play_rollout().bonuses is None


def shard(rank: int) -> torch.Tensor:
    visits = ([[5, 0, 6], [5, 0, 0]], [[5, 0, 0], [0, 0, 0]])[rank]
    changes = {} if rank == 0 else {"rewards": torch.zeros(2, 3)}
    rollout, bonus = visited(torch.tensor(visits), **changes), constant()
    return torch.stack([bonus.bonuses(rollout, 0, None) for _ in range(2)])


def test_processes_count_together(tmp_path):
    """Three episodes of both come to 5 and one to 6: 3/sqrt(3) + 1 in eight episodes is M = 0.3415. The
    largest return, 3, is the first process's. 6 pays 0.5 * 3 / M = 4.392, and 5 that by sqrt(3) = 2.536; the
    same rollout once more 1/sqrt(2) of it."""
    first, second = in_two_processes(tmp_path, shard)
    assert torch.allclose(first[0], torch.tensor([[2.536, 0.0, 4.392], [2.536, 0.0, 0.0]]), atol=1e-3)
    assert torch.allclose(second[0], torch.tensor([[2.536, 0.0, 0.0], [0.0, 0.0, 0.0]]), atol=1e-3)
    assert torch.allclose(second[1], second[0] / 2**0.5)
