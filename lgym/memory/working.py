"""The last turns of the episode in hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lgym.memory.records import PlayedTurn
from lgym.types import ConfigError


class WorkingMemory:
    """A window of recent turns, in the words of the agent's `summarise`."""

    def __init__(self, turns: int = 3, max_characters: int = 500) -> None:
        """
        Args:
            turns: of the episode in hand that are summarised, the last ones.
            max_characters: of the summary; of a longer one the end is shown.
        """
        if turns < 1:
            raise ConfigError(f"The working memory's turns are {turns}; give 1 or more, or leave data.working_memory out.")
        if max_characters < 1:
            raise ConfigError(f"The working memory's max_characters is {max_characters}; it must be 1 or more.")
        self.turns, self.max_characters = turns, max_characters

    def recent(self, turns: Sequence[PlayedTurn], summarise: Callable[[Sequence[PlayedTurn]], str]) -> str:
        """What is shown of the episode's turns so far; empty in its first."""
        text = summarise(turns[-self.turns :]) if turns else ""
        excess = len(text) - self.max_characters
        return "…" + text[excess + 1 :] if excess > 0 else text
