"""Observations as the model reads them: the agent's words, with the text of the run's memories."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from lgym.agents.base import TextAgent
from lgym.memory import EpisodicMemory, Memory, RememberedTurn, WorkingMemory
from lgym.plain_text import replace_surrogates, truncate_middle
from lgym.types import ConfigError

REMEMBERED_CHARACTERS = 10_000
"""Limit of one observation: comparing two memories takes the product of their lengths."""


class MemoryPrompt:
    """The remembered turns of one episode after the other, and the text of each observation with its
    memories.

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
        self._remembers = working is not None or episodic is not None
        self.begin()

    def try_out(self) -> None:
        """Have the agent word a turn that nobody played, if there are memories. Raises `ValueError` as `read`
        does."""
        if self._remembers:
            text = summary(self._agent, [RememberedTurn("", "", 0.0)])
            self._render("", text, [Memory(text, 0.0, 0, 1.0)])

    def begin(self) -> None:
        """Start an episode."""
        self.turns: list[RememberedTurn] = []
        self._shown: list[str] = []
        self._restored: deque[str | None] = deque()

    def add(self, turn: RememberedTurn) -> None:
        """Add the episode's next turn, if there are memories: of an observation at most
        `REMEMBERED_CHARACTERS`."""
        if self._remembers:
            self.turns.append(turn._replace(observation_text=_remembered(turn.observation_text)))

    def read(self, observation_text: str) -> str:
        """The text that the model reads of an observation.

        Raises:
            ValueError: if the agent's `render_memory` or `summarize` returns no text.
        """
        if not self._remembers:
            return observation_text
        restored = self._restored.popleft() or observation_text if self._restored else None
        if restored is None:
            recent = (
                ""
                if self._working is None
                else self._working.recent(self.turns, partial(summary, self._agent))
            )
            key = _remembered(observation_text)
            similar = () if self._episodic is None else self._episodic.similar(self.turns, key)
            restored = self._render(observation_text, recent, similar)
        self._shown.append(restored)
        return restored

    def state_dict(self, history: int | str) -> dict[str, list[str | None]]:
        """The texts read in this episode, as far as its prompts still show them: memories may since have
        changed."""
        if not self._shown:
            return {}
        return {
            "shown": [None] * (len(self._shown) - 1) + self._shown[-1:] if history == 0 else list(self._shown)
        }

    def bring_back(self, shown: Iterable[str | None]) -> None:
        """Have the episode's observations read as `state_dict` wrote them."""
        self._restored = deque(shown)

    def _render(self, observation_text: str, recent: str, similar: Sequence[Memory]) -> str:
        return _require_text(
            self._agent, "render_memory", self._agent.render_memory(observation_text, recent, similar)
        )


def summary(agent: TextAgent, turns: Sequence[RememberedTurn]) -> str:
    """The agent's summary of some turns. Raises `ValueError` if it is no text."""
    return _require_text(agent, "summarize", agent.summarize(turns))


def _remembered(observation_text: str) -> str:
    return truncate_middle(replace_surrogates(observation_text), REMEMBERED_CHARACTERS)


def _require_text(agent: TextAgent, method: str, text: object) -> str:
    if not isinstance(text, str):
        raise ConfigError(f"{type(agent).__name__}.{method} returned {text!r}; it must return text.")
    return text
