"""The input and the output of memories."""

from typing import NamedTuple


class RememberedTurn(NamedTuple):
    """A turn as memories store it."""

    observation_text: str
    """The agent's text of the observation, without memories."""

    answer: str
    """The chosen candidate, or the model's free text."""

    reward: float


class Memory(NamedTuple):
    """A turn or an episode that was played before."""

    text: str
    """The agent's summary of it."""

    mean_return: float
    """The return of an episode, or the return-to-go of a turn; undiscounted."""

    age: int
    """The rollouts played since; 0 for the last one."""

    similarity: float
    """Similarity of the observation then to the one now, 0 to 1."""
