"""Novelty by counts."""

import torch
from torch import Tensor

from lgym.functional import inputs


@torch.no_grad()
def count_novelty(counts: Tensor) -> Tensor:
    """The novelty of states that were visited N times.

    1 / sqrt(N), and 0 where N is 0: there is nothing to pay for.

    "An analysis of model-based Interval Estimation for Markov Decision Processes", Strehl & Littman 2008,
    doi:10.1016/j.jcss.2007.08.009, MBIE-EB; "Unifying Count-Based Exploration and Intrinsic Motivation",
    Bellemare et al. 2016, arXiv:1606.01868.

    Args:
        counts: [...] visits, 0 or more.

    Returns:
        [...] from 0 to 1, without gradient; at least float32.
    """
    counts = inputs.at_least_float32(counts)
    return counts.clamp(min=1).rsqrt() * (counts > 0)
