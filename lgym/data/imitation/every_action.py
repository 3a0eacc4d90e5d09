"""Demonstrations that favor no action."""

from collections.abc import Callable
from contextlib import closing
from itertools import chain, count, islice

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.random_play import random_turns
from lgym.types import ConfigError


class EveryAction:
    """Every candidate alike, at observations that random play meets: a policy that learns from these first
    tries all actions alike.

    An untrained model prefers some actions in every turn, whatever it reads. In a long episode it then never
    does what random play does now and then, such as to turn, walk and turn again to a goal, and is not paid.

    Args:
        turns: random ones to play, and demonstrated ones at the most: a sample, where there are more
            candidates at all their distinct observations.
        seed: the reset seed of the first random episode; the next are seed + 1, seed + 2 and so on.
    """

    def __init__(self, turns: int = 512, seed: int = 0) -> None:
        if turns < 1:
            raise ConfigError(f"EveryAction's turns are {turns}; give 1 or more.")
        self.turns = turns
        self.seed = seed

    def demonstrations(self, agent: TextAgent, make_env: Callable[[], gymnasium.Env]) -> list[Demonstration]:
        """Turns that show a candidate each. Raises `ConfigError` where an agent offers none."""
        seeds = np.random.SeedSequence(self.seed, spawn_key=(0,))  # apart from those of the environment
        rng = np.random.default_rng(seeds)
        with closing(make_env()) as env:
            episodes = (random_turns(env, agent, self.seed + n, rng, env.action_space) for n in count())
            played = islice(chain.from_iterable(episodes), self.turns)
            questions = dict.fromkeys(turn.question for turn in played)
        if not all(candidates for _, candidates in questions):
            raise ConfigError(
                f"EveryAction shows all candidates, and {type(agent).__name__} offers none: leave it out of "
                "data.demonstrations."
            )
        shown = [
            Demonstration(text, candidate, candidates)
            for text, candidates in questions
            for candidate in candidates
        ]
        return [shown[number] for number in rng.permutation(len(shown))[: self.turns].tolist()]
