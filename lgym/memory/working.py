"""Working memory: the last turns of the current episode."""

from collections.abc import Callable, Sequence

from lgym.memory.entries import RememberedTurn
from lgym.types import ConfigError


class WorkingMemory:
    """A window of recent turns, in the words of the agent's `summarize`.

    Args:
        turns: the number of last turns of the current episode that are summarized.
        max_characters: of the summary; of a longer one the end is shown.
    """

    def __init__(self, turns: int = 3, max_characters: int = 500) -> None:
        if turns < 1:
            raise ConfigError(
                f"The working memory's turns are {turns}; give 1 or more, or leave data.working_memory out."
            )
        if max_characters < 1:
            raise ConfigError(
                f"The working memory's max_characters is {max_characters}; it must be 1 or more."
            )
        self.turns = turns
        self.max_characters = max_characters

    def recent(
        self, turns: Sequence[RememberedTurn], summarize: Callable[[Sequence[RememberedTurn]], str]
    ) -> str:
        """The summary of the episode's last turns; empty in its first."""
        text = summarize(turns[-self.turns :]) if turns else ""
        excess = len(text) - self.max_characters
        return "…" + text[excess + 1 :] if excess > 0 else text
