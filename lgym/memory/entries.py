"""The input and the output of memories."""

from typing import NamedTuple


class RememberedTurn(NamedTuple):
    """A turn as memories store it.

    Attributes:
        observation_text: the agent's text of the observation, without memories.
        answer: the chosen candidate, or the model's free text.
        reward: of the environment or the agent's penalty.
    """

    observation_text: str
    answer: str
    reward: float


class Memory(NamedTuple):
    """A turn or an episode that was played before.

    Attributes:
        text: the agent's summary of it.
        mean_return: the return of an episode, or the return-to-go of a turn; undiscounted.
        age: the rollouts played since; 0 for the last one.
        similarity: similarity of the observation then to the one now, 0 to 1.
    """

    text: str
    mean_return: float
    age: int
    similarity: float
