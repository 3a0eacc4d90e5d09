"""From what a model puts out to log-probabilities: of tokens, and of candidate answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from lgym.functional.inputs import at_least_float32, require_bool, require_rank, require_same_shape


def token_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """The log-probability of each token given those before it. Here, and only here, is the shift by one.

    out[b, t] = log softmax(logits[b, t-1])[token_ids[b, t]], and out[b, 0] = 0: nothing predicts the first token.

    Shapes: logits [B, T, V], token_ids [B, T] with T >= 1. Returns [B, T], at least float32, as is the softmax.
    Where T is 1, all are 0. The logits at the last token are never read.
    Raises ValueError where the shapes do not fit.
    """
    require_rank(3, logits=logits)
    if token_ids.shape != logits.shape[:2] or token_ids.shape[-1] == 0:
        raise ValueError(
            f"token_ids must be [B, T] where logits are [B, T, V], T >= 1, "
            f"got token_ids {list(token_ids.shape)}, logits {list(logits.shape)}"
        )
    dtype = torch.promote_types(logits.dtype, torch.float32)
    predicted = torch.log_softmax(logits[:, :-1], dim=-1, dtype=dtype)
    return pad(predicted.gather(-1, token_ids[:, 1:, None]).squeeze(-1), (1, 0))


def candidate_logprobs(scores: Tensor, lengths: Tensor, mask: Tensor, *, temperature: float = 1.0) -> Tensor:
    """The log-probability of each candidate, from the log-likelihood that the model gives its text.

    log softmax_c(scores_c / lengths_c / temperature), over the candidates where mask is True.

    "True Knowledge Comes from Practice", Tan et al. 2024, arXiv:2401.14151: lengths count the candidate's tokens or
    its words, so that long candidates are not at a disadvantage; with lengths of 1 the scores are taken as they are.
    Shapes: scores, lengths and mask [..., C], equal; scores are sums over a candidate's tokens; lengths at least 1
    where mask is True. Returns [..., C], -inf where mask is False; at least float32.
    What scores and lengths hold where mask is False is never read and gets zero gradient. With one candidate its
    log-probability is 0; with none, all are -inf.
    Raises ValueError where the shapes differ, mask is not bool, or temperature is not above 0.
    """
    require_same_shape(scores=scores, lengths=lengths, mask=mask)
    require_bool(mask=mask)
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    scores = at_least_float32(scores)
    preferences = scores / lengths.masked_fill(~mask, 1).to(scores.dtype) / temperature
    # A finite filling, so that not even the softmax of a row without candidates sees a NaN on the way back.
    filled = preferences.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return filled.log_softmax(-1).masked_fill(~mask, -torch.inf)
