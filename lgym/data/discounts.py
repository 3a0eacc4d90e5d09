"""The discount of a game that is to be kept going: one that counts all the turns that an episode may have."""

import numpy as np

from lgym.data.exploration_choice import FEWEST_EPISODES
from lgym.data.random_play import RandomPlay
from lgym.data.sizing import Choice
from lgym.envs.make import DEFAULT_TIME_LIMIT
from lgym.types import DISCOUNTS

SURVIVAL = 0.9
"""Correlation of the returns of random episodes with their lengths from which a game is to be kept going."""

LONGEST = 1000
"""Turns that a reward counts for at the most: the longer, the noisier is what came after an action."""

CREDITED = 0.1
"""Share of these turns for which an action is credited with what came after it; values stand for the rest."""


def discount_choices(play: RandomPlay) -> list[Choice]:
    """Choose `gamma` and `gae_lambda` where longer episodes pay more.

    gamma = 1 - 1 / T and gae_lambda = max(0.95, 1 - 10 / T), with the time limit T in turns. With gamma 0.99,
    400 turns that pay 1 each are worth 98 % of any number of them: a policy that loses the last fifth of 500
    is not told.

    Args:
        play: random episodes, as training will play.

    Returns:
        Both, or none where episodes are to be ended, or are short, or play is no try at the game.
    """
    turns = min(play.time_limit or DEFAULT_TIME_LIMIT, LONGEST)
    gamma = round(1 - 1 / turns, 4)
    near = gamma <= DISCOUNTS["gamma"]
    if near or not play.tries or len(play.returns) < FEWEST_EPISODES or survival(play) < SURVIVAL:
        return []
    why = f"longer episodes pay more, and may have {turns} turns"
    gae_lambda = max(DISCOUNTS["gae_lambda"], round(1 - 1 / (CREDITED * turns), 4))
    return [
        Choice("gamma", gamma, why, place="model"),
        Choice("gae_lambda", gae_lambda, why, place="model"),
    ]


def survival(play: RandomPlay) -> float:
    """Correlation of the returns of episodes with their lengths; 0 where one of them never differs."""
    if np.std(play.lengths) == 0 or np.std(play.returns) == 0:
        return 0.0
    return float(np.corrcoef(play.lengths, play.returns)[0, 1])
