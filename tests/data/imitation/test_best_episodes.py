"""Which episodes are kept, which leave, and that a checkpoint brings them back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lgym.data.imitation.best_episodes import BestEpisodeBuffer, FinishedEpisode
from lgym.data.imitation.demonstrations import Demonstration


def episode(episode_return, *words, seed=0):
    """Each word is an observation, answered with itself in capitals."""
    return FinishedEpisode(episode_return, seed, tuple(Demonstration(word, word.upper()) for word in words))


def words(buffer):
    return "".join(turn.observation_text for turn in buffer.turns())


def filled(*episodes, **settings):
    buffer = BestEpisodeBuffer(**settings)
    buffer.add(episodes)
    return buffer


def ranked(count):
    """Returns 0, 1, 2, ... with the words a, b, c, ..."""
    return [episode(float(i), "abcdefghij"[i]) for i in range(count)]


@pytest.mark.parametrize(
    ("top_fraction", "count", "kept"),
    [
        (0.2, 10, "ij"),  # 2 of 10
        (0.1, 3, "c"),  # 0.3, so one
        (0.25, 7, "fg"),  # 1.75, so two
        (1.0, 4, "bcd"),  # all but the worst
        (0.5, 1, ""),  # the only one is the worst as well
        (0.5, 0, ""),
    ],
)
def test_the_top_fraction_of_a_rollout(top_fraction, count, kept):
    """By return; at least one, and never the worst."""
    assert words(filled(*ranked(count), top_fraction=top_fraction)) == kept


@pytest.mark.parametrize(
    ("rewards", "min_return"), [([0.9], 0.9), ([1 / 6] * 5 + [7 / 6], 2.0), ([0.2] * 3, 0.6)]
)
def test_a_return_is_as_exact_as_its_rewards(rewards, min_return):
    """They are recorded in single precision: an episode that was paid 0.9 has the return that 0.9 asks for."""
    recorded = sum(torch.tensor(rewards, dtype=torch.float32).tolist())
    assert words(filled(episode(recorded, "a"), min_return=min_return)) == "a"
    assert words(filled(episode(recorded, "a"), min_return=min_return * 1.00001)) == ""
    assert words(filled(episode(recorded, "a"), episode(float(np.float32(min_return)), "b"))) == ""


def test_every_rollout_has_its_own_top():
    """A later, worse rollout gives its best too."""
    buffer = filled(*ranked(4), top_fraction=0.25)
    buffer.add([episode(-5.0, "x"), episode(-4.0, "y")])
    assert words(buffer) == "dy"


def test_equals_at_the_cut_are_kept_together():
    """Of 1, 1, 1, 0 the top quarter is one of three equals: all three."""
    assert (
        words(
            filled(
                episode(1.0, "a"), episode(0.0, "b"), episode(1.0, "c"), episode(1.0, "d"), top_fraction=0.25
            )
        )
        == "acd"
    )


def test_equals_at_the_bottom_are_not_kept():
    """Of 1, 0, 0, 0 the top half would be the one and some of the zeros: the one alone."""
    assert words(filled(*[episode(float(i == 2), "abcd"[i]) for i in range(4)], top_fraction=0.5)) == "c"


@pytest.mark.parametrize(("min_return", "kept"), [(None, ""), (1.0, "ab"), (0.5, "ab"), (1.5, "")])
def test_where_nothing_stands_out_only_min_return_keeps(min_return, kept):
    """Two episodes of return 1."""
    assert (
        words(filled(episode(1.0, "a"), episode(1.0, "b"), top_fraction=0.5, min_return=min_return)) == kept
    )


def test_min_return_does_not_widen_the_fraction():
    """Of 0 to 9 the top two, and of those the ones from 9 on."""
    assert words(filled(*ranked(10), top_fraction=0.2, min_return=3.0)) == "ij"
    assert words(filled(*ranked(10), top_fraction=0.2, min_return=9.0)) == "j"


def test_the_same_turns_are_kept_once_with_the_better_return():
    """Lucky and unlucky plays of one hand are one sequence, wherever they were reset."""
    buffer = filled(
        episode(2.0, "a", "b", seed=1), episode(1.0, "a", "b", seed=2), episode(0.0, "z"), top_fraction=1.0
    )
    assert buffer.state_dict()["episodes"] == [(2.0, 2, [0, 1])]
    buffer.add([episode(1.0, "b", "a"), episode(0.0, "z")])  # another order is another sequence
    assert len(buffer) == 2
    assert words(buffer) == "ab"


def test_the_worst_leave_first_and_of_equals_the_oldest():
    """Room for two: of 3, 1, 2 the 1 leaves; then another 2 takes the old 2's place; then a 1 finds none."""
    buffer = BestEpisodeBuffer(top_fraction=0.5, capacity=2)
    for word, episode_return, kept in [
        ("a", 3.0, "a"),
        ("b", 1.0, "ab"),
        ("c", 2.0, "ac"),
        ("d", 2.0, "ad"),
        ("e", 1.0, "ad"),
    ]:
        buffer.add([episode(episode_return, word), episode(-9.0, "z")])
        assert words(buffer) == kept


def test_playing_an_episode_again_makes_it_new():
    """Of two equals, the one that was not played lately leaves."""
    buffer = BestEpisodeBuffer(top_fraction=0.5, capacity=2)
    for word in "abac":
        buffer.add([episode(1.0, word), episode(0.0, "z")])
    assert words(buffer) == "ac"


def test_turns_are_distinct():
    """Two answers to one observation are two turns; the same answer in two episodes is one."""
    shared, other = Demonstration("a", "left"), Demonstration("a", "right")
    buffer = filled((1.0, 0, (shared, other)), (1.0, 1, (other,)), (0.0, 2, ()), top_fraction=0.5)
    assert buffer.turns() == [shared, other]


def test_turns_without_a_reward_may_be_left_out():
    """Also those of the best episode; an episode that has no other is not kept."""
    first, second, third = (Demonstration(text, text.upper()) for text in "abc")
    played = [
        (2.0, 0, (first, second), (-0.5, 2.5)),
        (0.0, 1, (third,), (0.0,)),
        (-1.0, 2, (third,), (-1.0,)),
    ]
    buffer = filled(*played, top_fraction=0.7, rewarded_turns=True)
    assert (buffer.turns(), len(buffer)) == ([second], 1)
    assert filled(*played, top_fraction=0.7).turns() == [first, second, third]
    restored = BestEpisodeBuffer(rewarded_turns=True)
    restored.load_state_dict(buffer.state_dict())
    buffer.add(played)
    assert restored.turns() == buffer.turns() == [second]


def test_a_checkpoint_brings_it_back(tmp_path):
    """Also the tokens, and in the order that decides who leaves; nothing in it but plain numbers and
    texts."""
    turn = Demonstration("a", "left", candidates=("left", "right"), response_ids=(4, 2))
    kept = [
        (np.float64(2.0), np.int64(5), (turn, turn)),
        (1.0, 6, (turn,)),
        (1.0, 7, (Demonstration("b", "x"),)),
    ]
    buffer = filled(*kept, (0.0, 0, ()), top_fraction=0.75, capacity=3)
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    restored = filled(*ranked(3), top_fraction=0.5, capacity=3)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert restored.state_dict() == buffer.state_dict()
    assert [(t.candidates, t.response_ids) for t in restored.turns()] == [
        (("left", "right"), (4, 2)),
        ((), ()),
    ]
    for each in (buffer, restored):
        each.add([episode(1.0, "c"), episode(0.0, "z")])
    assert restored.turns() == buffer.turns()
    assert [row[0] for row in restored.state_dict()["episodes"]] == [2.0, 1.0, 1.0]
    assert restored.state_dict()["episodes"] == [(2.0, 5, [0, 0]), (1.0, 7, [1]), (1.0, 0, [2])]


@pytest.mark.parametrize("settings", [{"top_fraction": 0.0}, {"top_fraction": 1.1}, {"capacity": 0}])
def test_settings_that_keep_nothing_are_refused(settings):
    """With the number that is wrong."""
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is {next(iter(settings.values()))}"):
        BestEpisodeBuffer(**settings)
