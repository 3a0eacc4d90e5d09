"""A figure for several runs of one setting, and its interval.

"Deep Reinforcement Learning at the Edge of the Statistical Precipice", Agarwal et al. 2021, arXiv:2108.13264.
"""

import torch
from torch import Tensor

from lgym.functional.inputs import require_rank

RESAMPLES = 10_000


def interquartile_mean(scores: Tensor) -> Tensor:
    """The mean of the middle half: of n sorted scores, without the first and the last floor(n / 4).

    Of fewer than four scores it is their mean. Section 4.3 there.

    Args:
        scores: [..., n], n at least 1.

    Returns:
        [...].
    """
    n = scores.shape[-1]
    cut = n // 4
    return scores.sort(-1).values[..., cut : n - cut].mean(-1)


def bootstrap_interval(scores: Tensor, *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """The percentile bootstrap's interval of the interquartile mean: runs are drawn again and again, with
    replacement. Section 4.1 there.

    Of one score it is that score; of three it lies within the lowest and the highest.

    Args:
        scores: [n], of independent runs.
        confidence: share of the resamples that lies within.
        seed: of the resampling.

    Returns:
        Its lower and upper end.

    Raises:
        ValueError: if scores has no rank 1, or confidence is outside (0, 1).
    """
    require_rank(1, scores=scores)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be above 0 and below 1, got {confidence}")
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(scores), (RESAMPLES, len(scores)), generator=generator)
    means = interquartile_mean(scores[draws])
    tail = (1 - confidence) / 2
    low, high = means.double().quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high
