"""Memories of earlier episodes: which come back, in which order, and for how long."""

from __future__ import annotations

import io

import pytest
import torch

from lgym.memory import EpisodicMemory, RememberedTurn


def told(turns):
    return ", ".join(f"{turn.observation_text}:{turn.answer}" for turn in turns)


def memory(*rollouts, **settings):
    """Rollouts of episodes of one turn, each an observation, an answer and a reward."""
    made = EpisodicMemory(
        **{"top_k": 9, "min_similarity": 0, "return_weight": 0, "half_life": None, **settings}
    )
    for rollout in rollouts:
        made.store([[RememberedTurn(*turn)] for turn in rollout], told)
    return made


def texts(made, observation_text, turns=()):
    return [found.text for found in made.similar(turns, observation_text)]


def test_the_nearest_come_first():
    """rapidfuzz's ratio is twice the characters in common, in order, over all of both: of `door` and `doors`
    2 * 4 / 9, of `door` and `floor` (the letters oor) 2 * 3 / 9, of `door` and `wall` 0."""
    made = memory([("wall", "a", 0.0), ("floor", "a", 0.0), ("doors", "a", 0.0)])
    assert texts(made, "door") == ["doors:a", "floor:a", "wall:a"]
    assert [found.similarity for found in made.similar((), "door")] == pytest.approx([8 / 9, 6 / 9, 0])
    assert texts(memory([("wall", "a", 0.0), ("floor", "a", 0.0), ("doors", "a", 0.0)], top_k=1), "door") == [
        "doors:a"
    ]


@pytest.mark.parametrize(("least", "found"), [(0.6, 2), (0.7, 1), (0.9, 0)])
def test_only_similar_memories_come_back(least, found):
    made = memory([("wall", "a", 0.0), ("floor", "a", 0.0), ("doors", "a", 0.0)], min_similarity=least)
    assert len(made.similar((), "door")) == found


def test_a_similarity_of_one_is_the_same_text():
    made = memory([("row 1", "a", 0.0), ("row 2", "a", 0.0)], min_similarity=1)
    assert texts(made, "row 2") == ["row 2:a"]


def test_returns_weigh_as_much_as_is_set():
    """Returns from 0 to 4: that of 1 is a quarter of the way. With the weight 0.8 the factors are 1 - 0.8 *
    (1, 3/4, 0) = 0.2, 0.4 and 1. Without weight it is the newest of equals that comes first."""
    rollout = [("door", "best", 4.0), ("door", "worst", 0.0), ("door", "middling", 1.0)]
    assert texts(memory(rollout), "door") == ["door:middling", "door:worst", "door:best"]
    made = memory(rollout, return_weight=0.8)
    assert texts(made, "door") == ["door:best", "door:middling", "door:worst"]
    near = memory(
        [*rollout, ("doo", "good", 2.0)], return_weight=0.8
    )  # 6/7 * (1 - 0.8 * 0.5) = 0.51, behind 1 and before 0.4
    assert texts(near, "door") == ["door:best", "doo:good", "door:middling", "door:worst"]


def test_age_counts_in_rollouts():
    """With a half-life of one, a like memory of the rollout before counts half: 1 * 0.5 < 8/9 of the one of
    the last."""
    made = memory([("door", "old", 0.0)], [("doors", "new", 0.0)], half_life=1)
    assert texts(made, "door") == ["doors:new", "door:old"]
    assert [found.age for found in made.similar((), "door")] == [0, 1]
    assert texts(memory([("door", "old", 0.0)], [("doors", "new", 0.0)]), "door") == ["door:old", "doors:new"]
    made.store([], told)
    assert [found.age for found in made.similar((), "door")] == [1, 2]


def test_a_turn_returns_what_was_paid_from_it_on():
    """1, 0.1 and 0.2 were paid: 1.3, 0.3 and 0.2 from each turn on."""
    made = memory()
    made.store(
        [[RememberedTurn("a", "x", 1.0), RememberedTurn("b", "y", 0.1), RememberedTurn("c", "z", 0.2)]], told
    )
    found = {found.text: found.mean_return for found in made.similar((), "a")}
    assert found == pytest.approx({"a:x": 1.3, "b:y": 0.3, "c:z": 0.2})


def test_an_episode_is_found_by_how_it_began():
    """In each of its turns; it returns what all of it was paid."""
    made = memory(unit="episode", min_similarity=1)
    episode = [RememberedTurn("hall", "east", 1.0), RememberedTurn("attic", "stop", 2.0)]
    made.store([episode, [RememberedTurn("attic", "stop", 0.0)]], told)
    assert [found[:2] for found in made.similar((), "hall")] == [("hall:east, attic:stop", 3.0)]
    assert texts(made, "attic", turns=episode[:1]) == ["hall:east, attic:stop"]
    assert texts(made, "attic") == ["attic:stop"]


def test_a_repeated_turn_is_one_memory():
    """With the mean of its returns, in which an earlier one counts half after a half-life: (0.5 * 3 + 0 + 1)
    / 2.5 = 1. It is as new as the last."""
    made = memory(
        [("door", "x", 3.0), ("door", "y", 0.0)], [("door", "x", 0.0), ("door", "x", 1.0)], half_life=1
    )
    assert len(made) == 2
    first, second = made.similar((), "door")
    assert first == ("door:x", 1.0, 0, 1.0)
    assert second == ("door:y", 0.0, 1, 1.0)


def test_the_lowest_leave_first_and_of_equals_the_oldest():
    """The returns are 2, 0, 0, 1: the first 0 leaves, then the other."""
    rollout = [("a", "x", 2.0), ("b", "x", 0.0), ("c", "x", 0.0), ("d", "x", 1.0)]
    assert set(texts(memory(rollout, capacity=3, return_weight=0.5), "a")) == {"a:x", "c:x", "d:x"}
    assert set(texts(memory(rollout, capacity=2, return_weight=0.5), "a")) == {"a:x", "d:x"}
    older = memory(
        rollout, [("e", "x", 0.0)], capacity=1, return_weight=0.5, half_life=1
    )  # 1 * 0.5 or 0.5 * 1: the oldest leaves
    assert texts(older, "a") == ["e:x"]


def test_a_long_text_is_cut():
    made = memory([("a long hall", "go", 0.0)], max_characters=6)
    assert texts(made, "a long hall") == ["a lon…"]


def test_a_question_is_looked_up_once_a_rollout(monkeypatch):
    """Thousands of environments ask the same; after the next rollout the answer may be another."""
    asked = []
    sound = EpisodicMemory._nearest
    monkeypatch.setattr(
        EpisodicMemory, "_nearest", lambda self, text: (asked.append(text), sound(self, text))[1]
    )
    made = memory([("door", "x", 0.0)])
    for _ in range(3):
        assert texts(made, "door") == ["door:x"]
    assert asked == ["door"]
    made.store([[RememberedTurn("door", "y", 0.0)]], told)
    assert texts(made, "door") == ["door:y", "door:x"]


def test_it_comes_back_from_a_checkpoint():
    """A checkpoint has plain numbers and texts; later stores and evictions are the same too."""
    first, second = [("door", "x", 3.0), ("floor", "y", 0.5)], [("door", "x", 0.0), ("wall", "z", 1.0)]
    settings = {"half_life": 2, "return_weight": 0.5, "capacity": 3}
    made, other = memory(first, **settings), memory(**settings)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.similar((), "door") == made.similar((), "door")
    for one in (made, other):
        one.store([[RememberedTurn(*turn)] for turn in second], told)
    assert other.state_dict() == made.state_dict()
    assert len(other) == 3


def test_memories_of_another_unit_are_refused():
    """Turns shown as if they were episodes would mislead."""
    with pytest.raises(ValueError, match=r"remembers by the turn and data.episodic_memory.unit is episode"):
        memory(unit="episode").load_state_dict(memory([("door", "x", 0.0)]).state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, "top_k is 0; it must be 1 or more"),
        ({"capacity": 0}, "capacity is 0; it must be 1 or more"),
        ({"max_characters": 0}, "max_characters is 0; it must be 1 or more"),
        ({"min_similarity": 60}, "min_similarity is 60; it must lie between 0 and 1"),
        ({"return_weight": -0.1}, "return_weight is -0.1; it must lie between 0 and 1"),
        ({"half_life": 0}, "half_life is 0 rollouts; it must be above 0, or null"),
    ],
)
def test_settings_without_meaning_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EpisodicMemory(**settings)
