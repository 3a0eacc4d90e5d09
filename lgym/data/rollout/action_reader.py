"""From responses to actions of an environment, with the agent's fallback where none can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lgym.agents.base import TextAgent
from lgym.data.prompts.action_candidates import action_of
from lgym.rollout import Response


class Penalty(NamedTuple):
    """The outcome of a turn that the environment does not see."""

    reward: float
    terminated: bool


class ActionReader:
    """Reads the actions of one episode after the other."""

    def __init__(self, agent: TextAgent) -> None:
        self._agent = agent
        self.begin()

    def begin(self) -> None:
        """Start an episode."""
        self.action: Any = None  # the last one
        self.parsed = True
        self._unread = 0  # responses in a row without an action

    def read(self, response: Response, random_action: Callable[[], Any]) -> Penalty | None:
        """Set `action` and `parsed` from a response; a penalty where the agent's fallback keeps it from the
        environment."""
        agent = self._agent
        if response.choice >= 0:
            self.action = action_of(agent, str(response.action_text))
            return None
        parsed = agent.parse(str(response.action_text))
        self.parsed = parsed.ok
        self._unread = 0 if parsed.ok else self._unread + 1
        if parsed.ok:
            self.action = parsed.action
        elif (
            agent.fallback == "penalize"
        ):  # out of patience is over: what would come is no value to bootstrap on
            return Penalty(agent.penalty, self._unread >= agent.patience)
        elif agent.fallback == "end_episode":
            return Penalty(agent.penalty, True)
        elif agent.fallback == "default":
            self.action = agent.default_action
        elif agent.fallback == "random" or self.action is None:
            self.action = random_action()
        return None
