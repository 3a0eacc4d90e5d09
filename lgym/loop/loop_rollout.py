"""The episodes of a user's loop, and the `Rollout` made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lgym.rollout import Prompt, Response, Rollout
from lgym.types import Message


@dataclass
class LoopTurn:
    """One prompt, the response to it and its reward."""

    prompt: Prompt
    response: Response
    value: float
    parsed: bool = True
    reward: float = 0.0


@dataclass
class LoopEpisode:
    """The turns of one episode.

    Attributes:
        number: counts episodes from 0.
        turns: its turns.
        messages: its conversation, without the system prompt.
        seconds: of playing it.
        truncation_value: of the observation at which a time limit stopped it; `None` where the game was over.
    """

    number: int
    turns: list[LoopTurn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    seconds: float = 0.0
    truncation_value: float | None = None


def rollout_of(episodes: Sequence[LoopEpisode]) -> Rollout:
    """One row of episodes of one turn or more, in sequence."""
    pairs = [(episode, turn) for episode in episodes for turn in episode.turns]
    turns = [turn for _, turn in pairs]
    index: dict[Prompt, int] = {}
    prompt_index = [index.setdefault(turn.prompt, len(index)) for turn in turns]
    values = torch.zeros(len(index))
    values[prompt_index] = torch.tensor([turn.value for turn in turns])
    next_values = [
        value
        for episode in episodes
        for value in (*(turn.value for turn in episode.turns[1:]), episode.truncation_value or 0.0)
    ]
    episode_ids = torch.tensor([[episode.number for episode, _ in pairs]])
    return Rollout(
        prompts=tuple(index),
        prompt_values=values,
        responses=tuple(turn.response for turn in turns),
        prompt_index=torch.tensor([prompt_index]),
        response_index=torch.arange(len(turns))[None],
        rewards=torch.tensor([[turn.reward for turn in turns]], dtype=torch.float32),
        terminated=torch.tensor(
            [[turn is episode.turns[-1] and episode.truncation_value is None for episode, turn in pairs]]
        ),
        truncated=torch.tensor(
            [[turn is episode.turns[-1] and episode.truncation_value is not None for episode, turn in pairs]]
        ),
        cut=torch.zeros(1, len(turns), dtype=torch.bool),
        mask=torch.ones(1, len(turns), dtype=torch.bool),
        parsed=torch.tensor([[turn.parsed for turn in turns]]),
        episode_ids=episode_ids,
        reset_seeds=episode_ids,  # not known here; each episode is a start of its own
        next_values=torch.tensor([next_values], dtype=torch.float32),
        episode_returns=torch.tensor([sum(turn.reward for turn in episode.turns) for episode in episodes]),
        episode_lengths=torch.tensor([float(len(episode.turns)) for episode in episodes]),
        episode_penalties=torch.zeros(len(episodes)),  # not known here: the loop pays
        episode_successes=torch.full((len(episodes),), torch.nan),  # nor this
        seconds=sum(episode.seconds for episode in episodes),
    )
