"""Two processes with half the episodes each learn what one learns with all of them."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from helpers import two_processes


@pytest.fixture(scope="module")
def gradients_of_two(tmp_path_factory):
    return two_processes.in_two_processes(tmp_path_factory.mktemp("ranks"), two_processes.all_gradients)


@cache
def gradients_of_one(name):
    return two_processes.gradients(name, 100)


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("name", two_processes.ALGORITHMS)
def test_two_processes_have_the_gradients_of_one(gradients_of_two, name, size):
    """In float64 (but for the model's norms), through DDP itself: advantages, their whitening and the loss's
    divisor are over both; where one rank has fewer minibatches, they are filled up."""
    whole = gradients_of_one(name)
    for rank in range(2):
        for gradient, expected in zip(gradients_of_two[rank][name][size], whole, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert any(bool((gradient != 0).any()) for gradient in whole)
