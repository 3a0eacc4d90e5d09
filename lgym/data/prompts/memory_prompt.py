"""Observations as the model reads them: the agent's words, with the text of the run's memories."""

from collections.abc import Sequence
from functools import partial

from lgym.agents.base import TextAgent
from lgym.memory import EpisodicMemory, Memory, RememberedTurn, WorkingMemory
from lgym.plain_text import replace_surrogates, truncate_middle
from lgym.types import ConfigError

REMEMBERED_CHARACTERS = 10_000
"""Limit of one observation: comparing two memories takes the product of their lengths."""


class MemoryPrompt:
    """The text of each observation with its memories.

    Args:
        agent: words the memories.
        working: the memory of the current episode.
        episodic: the memory of other episodes; only read here.
    """

    def __init__(
        self, agent: TextAgent, working: WorkingMemory | None = None, episodic: EpisodicMemory | None = None
    ) -> None:
        self._agent = agent
        self._working = working
        self._episodic = episodic
        self.remembers = working is not None or episodic is not None

    def try_out(self) -> None:
        """Have the agent word a turn that nobody played, if there are memories. Raises `ValueError` as `read`
        does."""
        if self.remembers:
            text = summary(self._agent, [RememberedTurn("", "", 0.0)])
            self._render("", text, [Memory(text, 0.0, 0, 1.0)])

    def read(self, observation_text: str, turns: Sequence[RememberedTurn] = ()) -> str:
        """The text that the model reads of an observation.

        Args:
            observation_text: the text of the observation alone.
            turns: the turns of the episode so far.

        Raises:
            ValueError: if the agent's `render_memory` or `summarize` returns no text.
        """
        if not self.remembers:
            return observation_text
        recent = "" if self._working is None else self._working.recent(turns, partial(summary, self._agent))
        query = remembered(observation_text)
        similar = () if self._episodic is None else self._episodic.similar(turns, query)
        return self._render(observation_text, recent, similar)

    def _render(self, observation_text: str, recent: str, similar: Sequence[Memory]) -> str:
        text = self._agent.render_memory(observation_text, recent, similar)
        return _require_text(self._agent, "render_memory", text)


def remembered(observation_text: str) -> str:
    """The part of an observation that memories keep, at most `REMEMBERED_CHARACTERS`."""
    return truncate_middle(replace_surrogates(observation_text), REMEMBERED_CHARACTERS)


def summary(agent: TextAgent, turns: Sequence[RememberedTurn]) -> str:
    """The agent's summary of some turns. Raises `ValueError` if it is no text."""
    return _require_text(agent, "summarize", agent.summarize(turns))


def _require_text(agent: TextAgent, method: str, text: object) -> str:
    if not isinstance(text, str):
        raise ConfigError(f"{type(agent).__name__}.{method} returned {text!r}; it must return text.")
    return text
