"""Novelty by counts, with the arithmetic by hand."""

from __future__ import annotations

import pytest
import torch

from lgym.functional import count_novelty


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16])
def test_novelty_is_one_over_the_root_of_the_count(dtype):
    """1/sqrt(1), 1/sqrt(4), 1/sqrt(64); what was not visited pays nothing, and not infinitely much."""
    novelty = count_novelty(torch.tensor([[1, 4], [64, 0]], dtype=dtype))
    assert novelty.dtype == torch.float32
    assert torch.allclose(novelty, torch.tensor([[1.0, 0.5], [0.125, 0.0]]))
