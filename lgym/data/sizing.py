"""The size of a rollout where none is given: from a few thousand random turns."""

import math
from collections.abc import Callable
from statistics import fmean

import gymnasium

from lgym.agents import TextAgent
from lgym.data.data_config import DataConfig
from lgym.data.random_play import RandomPlay, play_at_random
from lgym.terminal import say

SIZE = ("num_envs", "episodes_per_rollout", "turns_per_rollout")
"""The settings that make up the size of a rollout."""

MEASURED_TURNS, MEASURED_SECONDS = 4096, 20.0
"""Random turns that the size is measured by, and the time after which fewer have to do."""

MOST_PROMPTS = 1024
"""Distinct prompts of a rollout: each is computed once, and they take nearly all of its time."""

FEWEST_TURNS, MOST_TURNS = 2048, 32768
FEWEST_ENVS, DEFAULT_ENVS, MOST_ENVS = 8, 16, 256
EPISODES_PER_ENV = 2

MOST_STEPS = 512
"""Turns of one environment in a rollout: each step of all environments together takes a time of its own."""


def measured_size(
    settings: DataConfig, make_env: Callable[[], gymnasium.Env], agent: TextAgent, *, whole_episodes: bool
) -> dict[str, int | None]:
    """Play at random, decide the settings of `SIZE`, and say them with the reason.

    Args:
        settings: the run's, which give none, or `num_envs` alone.
        make_env: makes an environment of training.
        agent: its words.
        whole_episodes: True for a size in episodes.
    """
    play = play_at_random(
        make_env,
        agent,
        history=settings.history,
        episodes=1,
        turns=MEASURED_TURNS,
        seed=settings.seed,
        seconds=MEASURED_SECONDS,
    )
    length = fmean(play.lengths) if play.lengths else float(len(play.longest))
    num_envs, turns = rollout_size(play, length, settings.num_envs)
    episodes = settings.group_size * max(2, round(turns / length / settings.group_size))
    amount = (
        f"{episodes:,} episodes (data.episodes_per_rollout)"
        if whole_episodes
        else f"{turns:,} turns (data.turns_per_rollout)"
    )
    say(
        f"A rollout is {amount} in {num_envs} environments (data.num_envs): {len(play.distinct):,} random "
        f"turns met {play.distinct[-1]:,} distinct prompts, and an episode has {length:.0f} turns."
    )
    amounts = (episodes, None) if whole_episodes else (None, turns)
    return dict(zip(SIZE, (num_envs, *amounts), strict=True))


def rollout_size(play: RandomPlay, length: float, num_envs: int | None) -> tuple[int, int]:
    """Number of environments and of turns: as many turns as ask the model about a thousand distinct prompts,
    in so many environments that each plays two episodes, or `MOST_STEPS` turns.

    Args:
        play: random play in the run's environment.
        length: turns of an episode.
        num_envs: environments, where they are given; turns are then a multiple of them.
    """
    turns = MOST_TURNS
    while turns > FEWEST_TURNS and play.distinct_after(turns) > MOST_PROMPTS:
        turns //= 2
    if num_envs is None:
        wanted = max(1.0, turns / (EPISODES_PER_ENV * length))
        fewest = max(FEWEST_ENVS, turns // MOST_STEPS)
        num_envs = min(MOST_ENVS, max(fewest, 2 ** round(math.log2(wanted))))
    return num_envs, num_envs * max(1, round(turns / num_envs))


def default_envs(turns: int | None) -> int:
    """Number of environments where none is given: 16, or the most below that which share a rollout's
    turns."""
    return next(n for n in range(DEFAULT_ENVS, 0, -1) if (turns or DEFAULT_ENVS) % n == 0)
