"""Batches of replies, made by hand."""

from __future__ import annotations

import torch

from lgym.batch import ReplyBatch


def reply_batch(contexts, rows, replies, *, masks=None, choices=None, advantage=1.0) -> ReplyBatch:
    """Turns that answer the numbered contexts; sorted by context."""
    width = max(map(len, replies))
    masks = masks or [(True,) * len(reply) for reply in replies]
    mask = torch.tensor([[*own, *[False] * (width - len(own))] for own in masks])
    return ReplyBatch(
        contexts=tuple(contexts),
        bundles=tuple((row,) for row in sorted(set(rows))),
        by_reply=True,
        rows=torch.tensor(rows),
        replies=tuple(replies),
        choices=torch.tensor(choices or [-1] * len(rows)),
        mask=mask,
        old_logprobs=torch.zeros(mask.shape),
        advantages=advantage * mask.float(),
        returns=None,
        ref_logprobs=None,
        scale=1.0 / len(rows),
    )
