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
    """An environment with an expert beside it, who is asked about each outcome once, when its answer is first
    read. What it raises is raised there, and not taken for the environment's fault."""

    def __init__(self, env: gymnasium.Env, policy: ScriptedExpert) -> None:
        super().__init__(env)
        self._policy = policy
        self._asked = False

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._observation, self._info = self.env.reset(**kwargs)
        self._failure: Exception | None = None
        self._tell("begin", self.env)
        self._over = False
        return self._observation, self._info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._observation, reward, terminated, truncated, self._info = self.env.step(action)
        self._tell("played", action)
        self._over = terminated or truncated
        return self._observation, reward, terminated, truncated, self._info

    @property
    def answer(self) -> Any:
        """The expert's answer to the last outcome of `reset` or `step`; `None` where it sees no way on, and
        at the end of an episode. Raises `ConfigError` where the expert fails."""
        if not self._asked:
            self._answer = self._ask()
            self._asked = True
        return self._answer

    def demonstration(self, agent: TextAgent) -> Demonstration:
        """The expert's answer to the observation at hand. Raises `ConfigError` where it names no action."""
        candidates, answer = tuple(agent.candidates(self._observation, self._info) or ()), self.answer
        try:
            response = response_text(agent, answer, candidates)
            return checked(agent, agent.format_observation(self._observation), response, candidates)
        except ValueError as error:
            raise ConfigError(
                f"{type(self._policy).__name__} answered {answer!r} to the observation "
                f"{self._observation!r}: {error}"
            ) from error

    def _tell(self, method: str, news: Any) -> None:
        """Call a method that an expert may have; what it raises is raised where the expert is asked."""
        self._asked = False
        try:
            getattr(self._policy, method, lambda _: None)(news)
        except Exception as error:  # noqa: BLE001 (`_ask` raises it, behind an episode's last turn too)
            self._failure = error

    def _ask(self) -> Any:
        try:
            if self._failure is not None:
                raise self._failure
            return None if self._over else self._policy.act(self._observation, self._info)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"The expert {type(self._policy).__name__} raised {type(error).__name__}: {error}. That was "
                f"at the observation {self._observation!r}; where it sees no way on it has to return None."
            ) from error
