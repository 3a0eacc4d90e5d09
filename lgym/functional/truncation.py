"""What is left of a distribution over tokens when its unlikely part is cut off."""

from __future__ import annotations

import torch
from torch import Tensor

from lgym.functional.inputs import require_between


def truncate_logits(logits: Tensor, *, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """-inf for every token outside the `top_k` likeliest, and outside the nucleus of `top_p`.

    The nucleus is the smallest set of likeliest tokens whose probabilities, after `top_k`, sum to at least `top_p`.

    "Hierarchical Neural Story Generation", Fan et al. 2018, arXiv:1805.04833, section 5.4 (top_k); "The Curious Case of
    Neural Text Degeneration", Holtzman et al. 2020, arXiv:1904.09751, section 3.1 (top_p).
    Shapes: logits [..., V]. Returns [..., V]; what is kept is unchanged. Equal logits at the edge of `top_k` are all kept.
    With top_k = 0 and top_p = 1, the defaults, nothing is cut off and `logits` comes back as it is.
    Raises ValueError where top_k is negative or top_p is not in (0, 1].
    """
    if top_k < 0:
        raise ValueError(f"top_k is {top_k}; it must be 0 (no limit) or more")
    require_between(0, 1, top_p=top_p)
    if top_p == 0:
        raise ValueError("top_p is 0; it must be above 0, or no token is left")
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[..., -1:], -torch.inf)
    if top_p == 1:
        return logits
    ordered, index = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    outside = torch.zeros_like(before, dtype=torch.bool).scatter(-1, index, before >= top_p)
    return logits.masked_fill(outside, -torch.inf)
