"""Any environment in words, from its spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import gymnasium

from lgym.agents.actions import SpokenActions, spoken
from lgym.agents.base import Fallback, TextAgent
from lgym.agents.describe import ObservationWords
from lgym.agents.parsing import pattern_fault, read_action
from lgym.types import ConfigError, ParsedAction


class GeneralAgent(TextAgent):
    """The agent of an environment that has none of its own: numbers with names, and a list of actions.

    Where there are no more actions than `max_candidates`, each is a candidate; of more, and of texts, the model has to
    speak. docs/environments.md tells which spaces have words.
    """

    def __init__(
        self,
        task: str | None = None,
        actions: list[str] | list[list[str]] | None = None,
        names: list[str] | dict[str, list[str]] | None = None,
        decimals: int | dict[str, int] | None = None,
        units: dict[str, str] | None = None,
        action_mask: str | None = "action_mask",
        max_candidates: int = 100,
        pattern: str | None = None,
        fallback: Fallback = "penalize",
    ) -> None:
        """
        Args:
            task: what the system prompt begins with; null names the environment. How to answer is added.
            actions: names of a `Discrete` space's actions; of `MultiDiscrete` and `MultiBinary` a list of them for each
                part. Null takes numbers.
            names: names of the parts of a vector or tuple; of several, by the label of each, such as {robot: [x, y]}.
            decimals: of numbers that are not whole; or by label, such as {robot x: 3}. Null takes a hundredth of the range.
            units: by label, such as {robot x: m}.
            action_mask: where `info` may say which actions are allowed, as Gymnasium's Taxi does; others are then left out.
                Null offers all.
            max_candidates: of how many actions at most each is a candidate.
            pattern: where free text has its action, see `TextAgent`.
            fallback: what happens when free text names no action, see `TextAgent`.
        """
        if max_candidates < 1:
            raise ConfigError(f"max_candidates is {max_candidates}; it must be 1 or more.")
        if pattern is not None and (fault := pattern_fault(pattern)) is not None:
            raise ConfigError(f"pattern is {pattern!r}: {fault}.")
        self.task, self.names, self.decimals, self.units = task, names, decimals, units
        self.action_mask, self.max_candidates = action_mask, max_candidates
        self.pattern, self.fallback = pattern, fallback
        self._action_names = actions
        self._spoken: SpokenActions | None = None
        self._words: ObservationWords | None = None
        self._prompt = ""

    def bind(self, env: gymnasium.Env) -> None:
        """Takes the spaces. Raises `ValueError` for those that have no words, and for names that do not fit."""
        self._spoken = spoken(env, self._action_names)
        self._words = ObservationWords(env.observation_space, self.names, self.decimals, self.units)
        task = self.task or f"You play {env.spec.name if env.spec is not None else type(env.unwrapped).__name__}."
        self._prompt = f"{task.rstrip()} {self._spoken.form}"
        self.actions = self._spoken.texts() if self._is_list() else ()

    @property
    def system_prompt(self) -> str:
        self._known()
        return self._prompt

    def format_observation(self, observation: Any) -> str:
        self._known()
        assert self._words is not None
        return self._words(observation)

    def candidates(self, observation: Any, info: Mapping[str, Any]) -> Sequence[str] | None:
        """The actions that the mask allows; all of them where it allows none."""
        if not self.actions:
            return None
        mask = info.get(self.action_mask) if self.action_mask is not None else None
        if mask is None:
            return self.actions
        allowed = self._known().allowed(mask)
        if len(allowed) != len(self.actions):
            raise ConfigError(
                f"info[{self.action_mask!r}] is {mask!r}, which does not fit the environment's {len(self.actions)} actions. "
                "Set the agent's action_mask: null to leave it aside."
            )
        return list(compress(self.actions, allowed)) or self.actions

    def parse(self, text: str) -> ParsedAction:
        return read_action(text, self.extract_action, json_key=self.json_key, pattern=self.pattern)

    def extract_action(self, text: str) -> ParsedAction:
        return self._known().read(text)

    def why_no_candidates(self) -> str:
        """For a message."""
        count = self._known().count
        if count is None:
            return "its actions are texts"
        return f"it has {count:,} actions, more than max_candidates ({self.max_candidates})"

    def _is_list(self) -> bool:
        count = self._known().count
        return count is not None and count <= self.max_candidates

    def _known(self) -> SpokenActions:
        if self._spoken is None:
            raise ConfigError("GeneralAgent does not know its environment yet: call its bind(env) first.")
        return self._spoken
