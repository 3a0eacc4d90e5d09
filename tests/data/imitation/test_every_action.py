"""A start that favors no action: every candidate once, at what random play meets."""

from __future__ import annotations

import math
from collections import Counter

import gymnasium
import pytest

from helpers.runs import lgym, scalars
from lgym.agents import FrozenLakeAgent, GeneralAgent
from lgym.data import EveryAction
from lgym.types import ConfigError


def lake() -> gymnasium.Env:
    return gymnasium.make("FrozenLake-v1", is_slippery=False)


def bound(agent, make_env):
    agent.bind(make_env())
    return agent


def test_every_candidate_is_shown_once_at_each_observation():
    """Catches the actions that were played in place of all, and an observation that is met often and counts
    more: all distinct ones of a small lake, with their four ways each."""
    turns = EveryAction().demonstrations(bound(FrozenLakeAgent(), lake), lake)
    assert len({turn.observation_text for turn in turns}) > 5
    assert set(Counter((turn.observation_text, turn.response_text) for turn in turns).values()) == {1}
    for text in {turn.observation_text for turn in turns}:
        shown = [turn for turn in turns if turn.observation_text == text]
        assert sorted(turn.response_text for turn in shown) == sorted(shown[0].candidates)
        assert len(shown) == 4


def test_turns_are_a_sample_where_there_are_more():
    """Catches the first observations, which lie about the start, and a sample that differs from run to
    run."""
    agent = bound(FrozenLakeAgent(), lake)
    few = EveryAction(turns=20, seed=1).demonstrations(agent, lake)
    assert len(few) == 20
    assert few == EveryAction(turns=20, seed=1).demonstrations(agent, lake)
    assert few != EveryAction(turns=20, seed=2).demonstrations(agent, lake)
    assert len({turn.observation_text for turn in few}) > 5


class Chance(gymnasium.Env):
    """An environment that draws a number each turn, and notes it with the action."""

    observation_space = action_space = gymnasium.spaces.Discrete(4)

    def __init__(self):
        self.pairs = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        self.pairs.append((int(self.np_random.integers(4)), int(action)))
        return 0, 0.0, False, False, {}


def test_actions_are_drawn_apart_from_the_environments_chance():
    """Catches one generator for both, with which each action is the number that the environment draws."""
    env = Chance()
    EveryAction(turns=200).demonstrations(bound(GeneralAgent(), Chance), lambda: env)
    assert len(env.pairs) >= 199
    assert 0.1 < sum(draw == action for draw, action in env.pairs) / len(env.pairs) < 0.4


def test_what_has_no_candidates_is_refused():
    agent = bound(GeneralAgent(max_candidates=1), lake)
    with pytest.raises(ConfigError, match="GeneralAgent offers none"):
        EveryAction().demonstrations(agent, lake)
    with pytest.raises(ConfigError, match="turns are 0"):
        EveryAction(turns=0)


def test_a_run_begins_with_all_actions_alike(tmp_path, model_folder):
    """Catches demonstrations that no rollout learns from where `sft` is not given, or that all do: the entropy
    comes to that of even odds, the log of the number of actions, from 0.01."""
    lgym(
        "fit",
        tmp_path,
        model_folder,
        data__demonstrations='[{"class_path": "lgym.data.EveryAction"}]',
        data__update_epochs=60,
        model__init_args__optimizer='{"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.003}}',
        trainer__gradient_clip_val=None,
    )
    metrics = scalars(tmp_path)
    assert len(metrics["loss/sft"]) == 1
    assert list(metrics["policy/entropy"].values()) == [pytest.approx(math.log(3), rel=0.01)]
