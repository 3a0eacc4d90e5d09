"""What the model reads of an observation: the agent's words, with what the run's memories add to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from lgym.agents.base import TextAgent
from lgym.memory import EpisodicMemory, Memory, PlayedTurn, WorkingMemory
from lgym.plain_text import replace_surrogates, truncate_middle
from lgym.types import ConfigError

REMEMBERED_CHARACTERS = 10_000
"""Of one observation; memories are compared with each other, which takes the product of their lengths."""


class Recall:
    """The turns of one episode after the other, and what is recalled at each observation."""

    def __init__(
        self, agent: TextAgent, working: WorkingMemory | None = None, episodic: EpisodicMemory | None = None
    ) -> None:
        """
        Args:
            agent: words what is remembered.
            working: how much of the episode in hand.
            episodic: what is remembered of others; only read here.
        """
        self._agent, self._working, self._episodic = agent, working, episodic
        self._remembers = working is not None or episodic is not None
        self.begin()

    def try_out(self) -> None:
        """Has the agent word a turn that nobody played, if there are memories. Raises `ValueError` as `read` does."""
        if self._remembers:
            text = summary(self._agent, [PlayedTurn("", "", 0.0)])
            _text(self._agent, "recall", self._agent.recall("", text, [Memory(text, 0.0, 0, 1.0)]))

    def begin(self) -> None:
        """Starts an episode."""
        self.turns: list[PlayedTurn] = []
        self._shown: list[str] = []
        self._restored: deque[str | None] = deque()

    def add(self, turn: PlayedTurn) -> None:
        """The episode's next turn, if there are memories: of an observation no more than `REMEMBERED_CHARACTERS`."""
        if self._remembers:
            self.turns.append(turn._replace(observation_text=_remembered(turn.observation_text)))

    def read(self, observation_text: str) -> str:
        """What the model reads of the observation now.

        Raises:
            ValueError: if the agent's `recall` or `summarise` makes no text.
        """
        if not self._remembers:
            return observation_text
        shown = self._restored.popleft() or observation_text if self._restored else self._composed(observation_text)
        self._shown.append(shown)
        return shown

    def _composed(self, observation_text: str) -> str:
        recent = "" if self._working is None else self._working.recent(self.turns, partial(summary, self._agent))
        similar = () if self._episodic is None else self._episodic.similar(self.turns, _remembered(observation_text))
        return _text(self._agent, "recall", self._agent.recall(observation_text, recent, similar))

    def state_dict(self, history: int | str) -> dict[str, list[str | None]]:
        """What the model has read in this episode, as far as its prompts still show it: memories may since have changed."""
        if not self._shown:
            return {}
        return {"shown": [None] * (len(self._shown) - 1) + self._shown[-1:] if history == 0 else list(self._shown)}

    def bring_back(self, shown: Iterable[str | None]) -> None:
        """Has the episode's observations read as `state_dict` wrote them."""
        self._restored = deque(shown)


def _remembered(observation_text: str) -> str:
    return truncate_middle(replace_surrogates(observation_text), REMEMBERED_CHARACTERS)


def summary(agent: TextAgent, turns: Sequence[PlayedTurn]) -> str:
    """The agent's own. Raises `ValueError` if it is no text."""
    return _text(agent, "summarise", agent.summarise(turns))


def _text(agent: TextAgent, method: str, said: object) -> str:
    if not isinstance(said, str):
        raise ConfigError(f"{type(agent).__name__}.{method} returned {said!r}; it must return text.")
    return said
