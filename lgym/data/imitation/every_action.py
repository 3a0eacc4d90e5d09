"""Demonstrations that favor no action."""

from collections.abc import Callable
from contextlib import closing
from itertools import chain, count, islice

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.random_play import Question, random_turns
from lgym.types import ConfigError

TURNS = 512
"""Random turns whose observations are chosen from."""


class EveryAction:
    """Every candidate once, at observations that random play meets: a policy that learns from these first
    tries all actions alike.

    An untrained model prefers some actions in every turn, whatever it reads. In a long episode it then never
    does what random play does now and then, such as to turn, walk and turn again to a goal, and is not paid.

    Args:
        observations: distinct ones at the most, each with all of its candidates.
        seed: the reset seed of the first random episode; the next are seed + 1, seed + 2 and so on.
    """

    def __init__(self, observations: int = 64, seed: int = 0) -> None:
        if observations < 1:
            raise ConfigError(f"EveryAction's observations are {observations}; give 1 or more.")
        self.observations = observations
        self.seed = seed

    def demonstrations(self, agent: TextAgent, make_env: Callable[[], gymnasium.Env]) -> list[Demonstration]:
        """A turn for each candidate of each observation. Raises `ConfigError` where an agent offers none."""
        rng = np.random.default_rng(self.seed)
        with closing(make_env()) as env:
            episodes = (random_turns(env, agent, self.seed + n, rng, env.action_space) for n in count())
            turns = islice(chain.from_iterable(episodes), TURNS)
            questions: list[Question] = list(dict.fromkeys(turn.question for turn in turns))
        if not all(candidates for _, candidates in questions):
            raise ConfigError(
                f"EveryAction shows all candidates, and {type(agent).__name__} offers none: leave it out of "
                "data.demonstrations."
            )
        chosen = rng.permutation(len(questions))[: self.observations].tolist()
        return [
            Demonstration(text, candidate, candidates)
            for text, candidates in (questions[number] for number in chosen)
            for candidate in candidates
        ]
