"""Experts that play by a rule, and an environment with one beside it."""

from typing import Any, Protocol

import gymnasium

from lgym.agents.base import TextAgent
from lgym.data.imitation.demonstrations import Demonstration, checked, response_text
from lgym.types import ConfigError


class ScriptedExpert(Protocol):
    """A policy that plays by a rule.

    One that plans may have `begin(env)` too, which is called when an episode of the environment begins, and
    `played(action)`, which is told what was played in each turn: its own answer, or noise.
    """

    def act(self, observation: Any, info: Any) -> Any:
        """The answer to the outcome of `reset` or `step`: a text, or an action of the environment. `None`
        ends the episode here, where noise has led to a place that no way leads on from."""


class AdvisedEnv(gymnasium.Wrapper):
    """An environment with an expert beside it, who is asked about each outcome once.

    Attributes:
        answer: of the expert to the last outcome of `reset` or `step`; `None` where it sees no way on, and
            at the end of an episode.
    """

    def __init__(self, env: gymnasium.Env, policy: ScriptedExpert) -> None:
        super().__init__(env)
        self._policy = policy

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        outcome = self.env.reset(**kwargs)
        if hasattr(self._policy, "begin"):
            self._policy.begin(self.env)
        self._ask(*outcome)
        return outcome

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if hasattr(self._policy, "played"):
            self._policy.played(action)
        self.answer = None
        if not (terminated or truncated):
            self._ask(observation, info)
        return observation, reward, terminated, truncated, info

    def demonstration(self, agent: TextAgent) -> Demonstration:
        """The expert's answer to the observation at hand. Raises `ConfigError` where it names no action."""
        candidates = tuple(agent.candidates(self._observation, self._info) or ())
        try:
            response = response_text(agent, self.answer, candidates)
            return checked(agent, agent.format_observation(self._observation), response, candidates)
        except ValueError as error:
            raise ConfigError(
                f"{type(self._policy).__name__} answered {self.answer!r} to the observation "
                f"{self._observation!r}: {error}"
            ) from error

    def _ask(self, observation: Any, info: dict[str, Any]) -> None:
        self._observation, self._info = observation, info
        self.answer = self._policy.act(observation, info)
