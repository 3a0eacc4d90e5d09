"""The size of a rollout where none is given: from a few thousand random turns."""

import math
from dataclasses import dataclass
from statistics import fmean

from lgym.data.random_play import RandomPlay

MEASURED_TURNS, MEASURED_SECONDS = 4096, 20.0
"""Random turns that a rollout's size is measured by, and the time after which fewer have to do."""

MOST_PROMPTS = 1024
"""Distinct prompts of a rollout: each is computed once, and takes nearly all of its time."""

FEWEST_TURNS, MOST_TURNS = 2048, 32768
FEWEST_ENVS, MOST_ENVS = 8, 256
EPISODES_PER_ENV = 2
DEFAULT_ENVS = 16


@dataclass(frozen=True)
class RolloutSize:
    """The play between two updates, and the reason for it."""

    num_envs: int
    turns: int
    reason: str

    def episodes(self, length: float, group_size: int) -> int:
        """The same amount in whole episodes of some length, in groups; two groups at least."""
        return group_size * max(2, round(self.turns / length / group_size))


def episode_length(play: RandomPlay) -> float:
    """Turns of a random episode: the mean, or what the longest has come to where none has ended."""
    return fmean(play.lengths) if play.lengths else float(len(play.longest))


def rollout_size(play: RandomPlay, num_envs: int | None) -> RolloutSize:
    """As many turns as ask the model some thousand distinct prompts, in so many environments that each plays
    about two episodes of a random player's length.

    Args:
        play: random play in the run's environment.
        num_envs: environments, where they are given; turns are then a multiple of them.
    """
    turns = MOST_TURNS
    while turns > FEWEST_TURNS and play.distinct_after(turns) > MOST_PROMPTS:
        turns //= 2
    length = episode_length(play)
    if num_envs is None:
        wanted = turns / (EPISODES_PER_ENV * length)
        num_envs = min(MOST_ENVS, max(FEWEST_ENVS, 2 ** round(math.log2(max(1.0, wanted)))))
    turns = num_envs * max(1, round(turns / num_envs))
    reason = (
        f"{len(play.distinct):,} random turns met {play.distinct[-1]:,} distinct prompts, and an episode has "
        f"{length:.0f} turns"
    )
    return RolloutSize(num_envs, turns, reason)


def default_envs(turns: int | None) -> int:
    """Environments where none are given: 16, or the most below that which share the turns of a rollout."""
    return next(n for n in range(DEFAULT_ENVS, 0, -1) if (turns or DEFAULT_ENVS) % n == 0)
