"""What was played in a user's loop, turn by turn, and the same as a `Rollout`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lgym.batch import Context, Reply, Rollout


@dataclass
class LoopTurn:
    """One question, the reply to it and what was paid for that."""

    context: Context
    reply: Reply
    value: float
    parsed: bool = True
    reward: float = 0.0


@dataclass
class LoopEpisode:
    """The turns of one episode."""

    number: int
    turns: list[LoopTurn] = field(default_factory=list)
    truncated: bool = False
    last_value: float = 0.0
    """Of the observation that the last turn led to; 0 where the game was over."""


def rollout_of(episodes: Sequence[LoopEpisode], play_seconds: float) -> Rollout:
    """Episodes of one turn or more, one after the other in one stream."""
    turns = [turn for episode in episodes for turn in episode.turns]
    numbers: dict[Context, int] = {}
    context_ids = [numbers.setdefault(turn.context, len(numbers)) for turn in turns]
    values = torch.zeros(len(numbers))
    values[context_ids] = torch.tensor([turn.value for turn in turns])
    ends = [turn is episode.turns[-1] for episode in episodes for turn in episode.turns]
    truncated = [end and episode.truncated for end, episode in zip(ends, _of_turns(episodes), strict=True)]
    next_values = [
        value
        for episode in episodes
        for value in (*(turn.value for turn in episode.turns[1:]), episode.last_value if episode.truncated else 0.0)
    ]
    played_by = torch.tensor([[episode.number for episode in _of_turns(episodes)]])
    return Rollout(
        contexts=tuple(numbers),
        context_ids=torch.tensor([context_ids]),
        choices=torch.arange(len(turns))[None],
        rewards=torch.tensor([[turn.reward for turn in turns]], dtype=torch.float32),
        terminated=torch.tensor([[end and not cut for end, cut in zip(ends, truncated, strict=True)]]),
        truncated=torch.tensor([truncated]),
        cut=torch.zeros(1, len(turns), dtype=torch.bool),
        mask=torch.ones(1, len(turns), dtype=torch.bool),
        parsed=torch.tensor([[turn.parsed for turn in turns]]),
        episode_ids=played_by,
        reset_seeds=played_by,  # not known here; each episode is a start of its own
        candidate_logprobs=None,
        replies=tuple(turn.reply for turn in turns),
        context_values=values,
        next_values=torch.tensor([next_values], dtype=torch.float32),
        episode_returns=torch.tensor([sum(turn.reward for turn in episode.turns) for episode in episodes]),
        episode_lengths=torch.tensor([float(len(episode.turns)) for episode in episodes]),
        episode_penalties=torch.zeros(len(episodes)),  # not known here: the loop pays
        play_seconds=play_seconds,
    )


def _of_turns(episodes: Sequence[LoopEpisode]) -> list[LoopEpisode]:
    """The episode of each turn."""
    return [episode for episode in episodes for _ in episode.turns]
