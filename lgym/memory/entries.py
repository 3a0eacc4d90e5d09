"""What memories are made of, and what they give."""

from __future__ import annotations

from typing import NamedTuple


class RememberedTurn(NamedTuple):
    """A turn as it is remembered."""

    observation_text: str
    """What the agent made of the observation, without memories."""

    answer: str
    """The candidate that was chosen, or what the model said."""

    reward: float


class Memory(NamedTuple):
    """A turn or an episode that was played before."""

    text: str
    """The agent's summary of it."""

    mean_return: float
    """Of an episode its return; of a turn what was paid from it to the episode's end. Undiscounted."""

    age: int
    """How many rollouts have been played since; 0 for the last one."""

    similarity: float
    """Of the observation then to the one now, 0 to 1."""
