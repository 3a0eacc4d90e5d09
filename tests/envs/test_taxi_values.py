"""The exact values of Taxi."""

from __future__ import annotations

from functools import cache

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.taxi import TaxiEnv

from lgym.envs import tabular


@cache
def reference_returns(steps=200, **settings):
    return tabular.reference_returns(TaxiEnv(**settings), steps)


def test_baselines():
    """Optimal: over the 300 starts, 20 for the delivery and -1 for each of the 12.07 steps before it."""
    values = reference_returns()
    assert values["optimal"] == pytest.approx(20 - 12.07, abs=1e-6)
    assert values["random"] == pytest.approx(-771.0910, abs=1e-3)
    assert values["random, allowed actions"] == pytest.approx(-186.1795, abs=1e-3)


def test_baselines_are_those_of_the_environment():
    """Played 300 times at random: 4 standard errors of a return that varies by 110 are 25."""
    env = gymnasium.make("Taxi-v4")
    env.action_space.seed(0)
    returns = []
    for seed in range(300):
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, over = total + reward, terminated or truncated
        returns.append(total)
    assert np.mean(returns) == pytest.approx(reference_returns()["random"], abs=25)


def test_rain_and_less_time_cost():
    assert reference_returns(is_rainy=True)["optimal"] < reference_returns()["optimal"] - 1
    assert reference_returns(steps=5)["optimal"] < 0
