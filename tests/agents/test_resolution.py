"""Steps to round to, chosen for few distinct texts."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from helpers import spaces
from lgym.agents import GeneralAgent
from lgym.agents.observation_formatter import ObservationFormatter
from lgym.agents.observation_settings import ObservationSettings
from lgym.agents.resolution import choose_resolutions, step

SPACE = Dict(robot=Box(-np.inf, np.inf, (2,)), door=Discrete(3), still=Box(0, 1, (1,)))


def observations(count=500):
    rng = np.random.default_rng(0)
    return [
        {"robot": rng.uniform((-1, -100), (1, 100)), "door": int(rng.integers(3)), "still": [0.5]}
        for _ in range(count)
    ]


def texts(shown, **settings):
    return len(set(map(ObservationFormatter(SPACE, ObservationSettings(**settings)), shown)))


def test_the_series():
    assert [step(n) for n in range(-4, 5)] == [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20]


@pytest.mark.parametrize("max_texts", [40, 60, 100, 200, 350])
def test_texts_are_few_and_no_fewer_than_need_be(max_texts):
    """Steps are in proportion to the ranges, and none of them could be one finer."""
    shown = observations()
    chosen = choose_resolutions(ObservationFormatter(SPACE), shown, max_texts)
    assert chosen.keys() == {"robot 0", "robot 1"}
    assert 20 <= chosen["robot 1"] / chosen["robot 0"] <= 500
    assert max_texts / 4 < texts(shown, resolution=chosen) <= max_texts
    series = [step(number) for number in range(-10, 10)]
    for label, size in chosen.items():
        finer = series[series.index(size) - 1]
        assert texts(shown, resolution=chosen | {label: finer}) > max_texts


def test_few_texts_need_no_rounding():
    shown = observations()
    assert choose_resolutions(ObservationFormatter(SPACE), shown, 500) == {}
    assert choose_resolutions(ObservationFormatter(Discrete(9)), [0, 1, 2], 2) == {}


def test_too_many_texts_by_other_parts():
    """All that rounding can do is done: every number reads 0."""
    shown = observations()
    chosen = choose_resolutions(ObservationFormatter(SPACE), shown, 2)
    assert texts(shown, resolution=chosen) == 3


def test_a_general_agent_chooses_unless_the_form_is_set():
    """A setting that is given, or known, wins."""
    env = spaces.SpacesEnv(SPACE, Discrete(2))
    shown = observations()
    expected = choose_resolutions(ObservationFormatter(SPACE), shown, 100)
    for settings, chosen in [({}, expected), ({"decimals": 3}, {}), ({"resolution": 0.5}, {})]:
        agent = GeneralAgent(**settings)
        agent.bind(env)
        assert agent.choose_resolutions(shown, 100) == chosen


def test_words_stay_words():
    agent = GeneralAgent(words={"robot 1": True}, scale={"robot 1": 50.0})
    agent.bind(spaces.SpacesEnv(SPACE, Discrete(2)))
    assert agent.choose_resolutions(observations(), 100).keys() == {"robot 0"}
