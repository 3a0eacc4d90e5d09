"""What was said in a rollout, as tokens to learn from and to look at."""

from __future__ import annotations

import torch
from torch import Tensor

from lgym.batch import Reply, ReplyBatch, Rollout
from lgym.types import TaughtTurn


def taught_turn(batch: ReplyBatch, turn: int) -> TaughtTurn:
    """A turn of a batch, with what its tokens learn."""
    ids = batch.replies[turn]
    columns = (column[turn].tolist()[: len(ids)] for column in (batch.mask, batch.old_logprobs, batch.advantages))
    mask, logprobs, advantages = (tuple(column) + (0,) * (len(ids) - len(column)) for column in columns)
    return TaughtTurn(batch.contexts[int(batch.rows[turn])].prompt_ids, ids, tuple(map(bool, mask)), logprobs, advantages)


def replies_of(rollout: Rollout) -> list[Reply]:
    """What was said in each turn; a choice between candidates as a reply of one token."""
    choices = rollout.choices[rollout.mask].tolist()
    if rollout.candidate_logprobs is None:
        return [rollout.replies[choice] for choice in choices]
    rows = rollout.context_ids[rollout.mask].tolist()
    return [
        Reply(
            rollout.contexts[row].candidate_ids[choice][:1],
            (float(rollout.candidate_logprobs[row, choice]),),
            True,
            choice=choice,
        )
        for row, choice in zip(rows, choices, strict=True)
    ]


def padded(rows: list[tuple[float, ...]] | list[tuple[bool, ...]]) -> Tensor:
    """[B, T], 0 behind a row's end."""
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.float32)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = torch.tensor(values, dtype=torch.float32)
    return padded
