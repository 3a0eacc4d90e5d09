"""Shorter episodes, a frame skip or a bonus, where random play gets nowhere: by hand and on real games."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text

from helpers.spaces import SpacesEnv
from lgym.data.exploration_choice import (
    change_per_turn,
    changes_slowly,
    differing,
    exploration_choices,
    why_explore,
)
from lgym.data.measuring import DEFAULTS
from lgym.data.random_play import RandomPlay

VECTOR, NUMBER, TWO = Box(-1, 1, (2,)), Discrete(5), Discrete(2)


def played(returns, length: int = 50, truncated: int = 0, rewards=(0.0, 1.0)) -> RandomPlay:
    return RandomPlay(
        returns=list(returns),
        lengths=[length] * len(returns),
        truncated=truncated,
        rewards=set(rewards),
        longest=[("a", "b")] * length,
    )


class Plays:
    """Random play by table: what it finds with the changes that it is asked for."""

    def __init__(self, plain: RandomPlay, **by_skip: RandomPlay) -> None:
        self.plain, self.by_skip, self.asked = plain, by_skip, []

    def __call__(self, **changed: int) -> RandomPlay:
        self.asked.append(changed)
        return self.by_skip.get(f"skip{changed.get('frame_skip', 1)}", self.plain)


def decided(plays: Plays, space=NUMBER, open_names=frozenset(DEFAULTS), actions=TWO):
    """The play that counts, and what was decided, by name."""

    def make_env(**changed: int) -> gymnasium.Env:
        return SpacesEnv(space, actions)

    random, choices = exploration_choices(set(open_names), make_env, plays)
    return random, {choice.name: choice.value for choice in choices}


SAME = [0.0] * 20
FEW, MANY = [0.0] * 17 + [1.0] * 3, [0.0] * 10 + [1.0] * 10  # 15 % and 50 % differ


@pytest.mark.parametrize(
    ("returns", "expected"), [(SAME, 0.0), (FEW, 0.15), (MANY, 0.5), ([1.0, 2.0, 3.0, 4.0], 0.75), ([], 1.0)]
)
def test_the_share_of_other_returns(returns, expected):
    """Catches a share of returns above 0: -200 in all of 20 episodes is as little to learn from."""
    assert differing(played(returns)) == pytest.approx(expected)
    assert differing(played([value - 200 for value in returns])) == pytest.approx(expected)


def test_where_episodes_differ_nothing_is_decided():
    """Catches a bonus for every game."""
    plays = Plays(played(MANY))
    assert decided(plays)[1] == {}
    assert decided(plays, VECTOR)[1] == {}
    assert plays.asked == [{}, {}]


def test_a_bonus_pays_where_returns_are_all_the_same():
    """Catches a game whose goal random play never finds, and that is left without a bonus; and one whose goal it
    finds now and then, and the model, which prefers some actions, not at all."""
    assert decided(Plays(played(SAME)))[1].keys() == {"exploration_bonus"}
    assert decided(Plays(played(FEW, length=10)))[1].keys() == {"exploration_bonus"}
    assert decided(Plays(played(FEW, length=9)))[1] == {}
    assert decided(Plays(played(SAME)), open_names={"num_envs", "frame_skip"})[1] == {}


@pytest.mark.parametrize(
    ("space", "actions", "candidates", "expected"),
    [
        (NUMBER, TWO, ("left", "right"), True),
        (NUMBER, TWO, (), False),
        (NUMBER, Text(20), ("go east", "look"), False),
        (VECTOR, TWO, ("left", "right"), False),
    ],
    ids=["numbered", "not offered", "texts", "forces"],
)
def test_a_start_that_favors_no_action(space, actions, candidates, expected):
    """Catches commands of a text game that are taken for as good as each other, where a model that reads knows
    better; answers in free text, which no list shows; forces on a body that random ones hold in its place; and a goal that random play reaches in half of its
    episodes and a model that prefers some actions in none."""
    play = played(SAME)
    play.questions = {("a", candidates): None}
    found = decided(Plays(play), space, actions=actions)[1]
    assert found.keys() == {"exploration_bonus"} | ({"demonstrations"} if expected else set())
    assert decided(Plays(play), space, actions=actions, open_names={"num_envs"})[1] == {}
    play.returns = MANY  # which need no bonus
    assert decided(Plays(play), space, actions=actions)[1].keys() == (
        {"demonstrations"} if expected else set()
    )
    play.returns = list(range(20))
    assert decided(Plays(play), space, actions=actions)[1] == {}
    play.returns = [-1.0, *SAME[1:]]  # random play may lose what others keep
    assert decided(Plays(play), space, actions=actions)[1].keys() == {"exploration_bonus"}


@pytest.mark.parametrize(
    ("truncated", "rewards", "pays"),
    [(19, (-1.0, -100.0), True), (18, (-1.0, -100.0), False), (20, range(5), True), (20, range(6), False)],
)
def test_a_bonus_pays_where_episodes_find_no_end(truncated, rewards, pays):
    """Catches falls from a cliff taken for something to learn from: more than 90 % of episodes end by their
    limit, and the few rewards name events. A distance that is paid for has many."""
    reason = why_explore(played(range(20), truncated=truncated, rewards=rewards))
    assert bool(reason) == pays


@pytest.mark.parametrize(
    ("others", "expected", "asked"),
    [
        ({"skip2": MANY}, 2, [1, 2]),  # enough: no further one is tried
        ({"skip4": FEW, "skip8": MANY}, 8, [1, 2, 4, 8]),
        ({"skip4": FEW, "skip8": FEW}, 4, [1, 2, 4, 8, 16]),  # the shortest of equals
        ({}, None, [1, 2, 4, 8, 16]),
    ],
)
def test_a_frame_skip_that_gets_further(others, expected, asked):
    """Catches the longest skip where a shorter one does: a turn should decide as little as needs be. Where
    none helps enough, a bonus pays."""
    plays = Plays(played(SAME), **{name: played(returns) for name, returns in others.items()})
    random, found = decided(plays, VECTOR)
    assert [changed.get("frame_skip", 1) for changed in plays.asked] == asked
    assert found.get("frame_skip") == expected
    assert ("exploration_bonus" in found) == (MANY not in [play.returns for play in plays.by_skip.values()])
    assert random is plays(frame_skip=expected or 1)


def walk(change: float) -> RandomPlay:
    """Random play whose returns differ, with so much change in a turn, in standard deviations."""
    turns = int(np.sqrt(12) / change)  # a ramp of n turns has a standard deviation of n / sqrt(12)
    ramp = np.arange(turns, dtype=float)
    play = played(MANY)
    play.observations = [np.array([x, 3 * x, 7.0]) for x in ramp]  # the last number never changes
    return play


@pytest.mark.parametrize("change", [0.01, 0.04, 0.2])
def test_the_change_of_observations_in_a_turn(change):
    """Catches the units of a number in its change, and numbers that never change taken for slow ones."""
    assert change_per_turn(walk(change)) == pytest.approx(change, rel=0.1)
    assert change_per_turn(played(MANY)) == np.inf
    standing = played(MANY)
    standing.observations = [np.ones(2)] * 5
    assert change_per_turn(standing) == np.inf


def test_a_board_as_a_vector_is_no_slow_physics():
    """A cell of a one-hot vector changes in an eighth of the turns, and by all of its range."""
    board = played(MANY)
    board.observations = list(np.eye(16, dtype=np.float32)[np.random.default_rng(0).integers(16, size=400)])
    assert change_per_turn(board) == np.inf
    plays = Plays(board)
    _, found = decided(plays, VECTOR)
    assert "frame_skip" not in found


@pytest.mark.parametrize(
    ("by_skip", "expected"),
    [
        ({"skip2": walk(0.04), "skip4": walk(0.08)}, 4),
        ({"skip2": walk(0.06)}, 2),
        ({f"skip{skip}": walk(0.01) for skip in (2, 4, 8, 16)}, 16),
    ],
)
def test_a_frame_skip_in_which_something_changes(by_skip, expected):
    """Catches a lander that is asked 50 times a second, between which next to nothing happens. Its returns
    differ, and no bonus pays."""
    plays = Plays(walk(0.02), **by_skip)
    random, found = decided(plays, VECTOR)
    assert found == {"frame_skip": expected}
    assert random is plays(frame_skip=expected)
    assert decided(plays, NUMBER)[1] == {}


def test_no_frame_skip_where_each_step_may_count():
    """Catches an action repeated in a maze, and one that was set and is overridden."""
    plays = Plays(played(SAME), skip2=played(MANY))
    assert "frame_skip" not in decided(plays, NUMBER)[1]
    assert "frame_skip" not in decided(plays, VECTOR, open_names=set(DEFAULTS) - {"frame_skip"})[1]


@pytest.mark.parametrize(
    ("observations", "actions", "expected"),
    [
        (VECTOR, Discrete(2), True),
        (NUMBER, Discrete(2), False),
        (Box(0, 9, (2,), dtype=np.int64), Discrete(2), False),
        (Box(0, 1, (2, 2)), Discrete(2), False),
        (VECTOR, VECTOR, False),
    ],
)
def test_what_changes_slowly(observations, actions, expected):
    """Catches an action repeated on boards, pictures and whole numbers."""
    assert changes_slowly(partial(SpacesEnv, observations, actions)) == expected


def test_an_endless_game_gets_a_limit():
    """Catches episodes of a thousand turns in a game that nothing ends; the play that counts is that within
    the limit."""
    short = played(SAME, 200, 20)
    plays = Plays(played(SAME, 1000, 15))
    plays.by_skip = {}
    plays_of = lambda **changed: short if changed.get("max_episode_steps") == 200 else plays(**changed)  # noqa: E731
    random, found = decided(plays_of)
    assert random is short
    assert found["max_episode_steps"] == 200
    assert "exploration_bonus" in found
    assert "max_episode_steps" not in decided(plays_of, open_names={"exploration_bonus"})[1]


@pytest.mark.parametrize(("length", "truncated"), [(500, 20), (1000, 13)], ids=["short", "with ends"])
def test_a_game_that_ends_keeps_its_limit(length, truncated):
    """Catches a limit for a game whose end random play does find, or that is short enough."""
    assert "max_episode_steps" not in decided(Plays(played(SAME, length, truncated)))[1]


def test_a_limit_of_the_games_own_stays():
    """Catches 999 steps of the game's designer that became 200: its reward may come at step 300."""
    play = played(SAME, 999, 20)
    play.time_limit = 999
    assert "max_episode_steps" not in decided(Plays(play))[1]


def test_too_few_episodes_decide_nothing():
    """Catches a bonus because of two episodes of a slow game."""
    assert decided(Plays(played(SAME[:9])))[1] == {}
    assert "exploration_bonus" in decided(Plays(played(SAME[:10])))[1]


def test_random_characters_decide_nothing():
    """Catches a bonus for a word game that random characters never win."""
    play = played(SAME)
    assert decided(Plays(play))[1]
    play.tries = False
    assert not decided(Plays(play))[1]
