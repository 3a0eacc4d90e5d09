"""Top-k and nucleus (top-p) truncation of a distribution over tokens."""

import torch
from torch import Tensor

from lgym.functional.inputs import at_least_float32, require_between


def truncate_logits(logits: Tensor, *, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Set to -inf every token outside the `top_k` likeliest, and outside the nucleus of `top_p`.

    The nucleus is the smallest set of likeliest tokens whose probabilities, after `top_k`, sum to at least
    `top_p`.

    "Hierarchical Neural Story Generation", Fan et al. 2018, arXiv:1805.04833, section 5.4 (top_k); "The
    Curious Case of Neural Text Degeneration", Holtzman et al. 2020, arXiv:1904.09751, section 3.1 (top_p).

    Args:
        logits: [..., V].
        top_k: the number of tokens kept, 0 for all. Equal logits at its edge are all kept.
        top_p: the probability mass kept, above 0 and at most 1.

    Returns:
        [..., V], the kept logits unchanged; `logits` itself with top_k = 0 and top_p = 1.

    Raises:
        ValueError: if top_k is negative or top_p is not in (0, 1].
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
    probabilities = at_least_float32(ordered).softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    outside = torch.zeros_like(mass_before, dtype=torch.bool).scatter(-1, index, mass_before >= top_p)
    return logits.masked_fill(outside, -torch.inf)
