"""Log-probabilities of candidate answers, from the likelihoods that a model gives their texts."""

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_bool, require_same_shape


def candidate_logprobs(scores: Tensor, lengths: Tensor, mask: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-softmax over candidates of their length-normalized log-likelihoods.

    log softmax_c(scores_c / lengths_c / temperature), over the candidates where mask is True.

    "True Knowledge Comes from Practice", Tan et al. 2024, arXiv:2401.14151: lengths count the candidate's
    tokens or its words, so that long candidates are not at a disadvantage; with lengths of 1 the scores are
    taken as they are.

    Scores and lengths where mask is False are never read and get zero gradient. With one candidate its
    log-probability is 0; with none, all are -inf.

    Args:
        scores: [..., C], sums of log-probabilities over a candidate's tokens.
        lengths: [..., C], at least 1 where mask is True.
        mask: [..., C] of bool, True where there is a candidate.
        temperature: divides the scores; above 0.

    Returns:
        [..., C], -inf where mask is False; at least float32.

    Raises:
        ValueError: if the shapes differ, mask is not bool, or temperature is not above 0.
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
