"""Exact values of Gymnasium's Taxi."""

from functools import cache

import numpy as np
from gymnasium.envs.toy_text.taxi import TaxiEnv

from lgym.envs.tabular import optimal_value, policy_value, tables, uniform_value


@cache
def reference_returns(
    is_rainy: bool = False, rainy_probability: float = 0.8, steps: int = 200
) -> dict[str, float]:
    """Mean returns over the 300 starts: of any action, of any that the action mask allows, and of the best.

    On a dry day the best takes 13.07 steps: 20 at the end, -1 for each step before. 200 steps are the time
    limit that the environment is registered with.
    """
    taxi = TaxiEnv(is_rainy=is_rainy, rainy_probability=rainy_probability)
    mdp = tables(taxi)
    allowed = np.stack([taxi.action_mask(state) for state in range(len(mdp.start))]).astype(float)
    return {
        "random": uniform_value(mdp, steps),
        "random, allowed actions": policy_value(mdp, allowed / allowed.sum(axis=1, keepdims=True), steps),
        "optimal": optimal_value(mdp, steps),
    }
