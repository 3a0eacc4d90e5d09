"""Two processes with half the episodes each learn what one learns with all of them."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from helpers import two_processes
from lgym import distributed


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


@pytest.fixture(scope="module")
def gradients_from_shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return two_processes.in_two_processes(folder, two_processes.all_gradients_from_shards)


@pytest.mark.parametrize("name", [*two_processes.ALGORITHMS, *two_processes.LAYOUTS])
def test_sharded_weights_give_the_gradients_of_whole_ones(gradients_from_shards, name):
    """By FSDP2, where the processes pass forward together and each prepares a rollout of its own."""
    whole = gradients_of_one("GRPO" if name in two_processes.LAYOUTS else name)
    for rank in range(2):
        for gradient, expected in zip(gradients_from_shards[rank][name], whole, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


def test_each_process_holds_its_part_of_the_frozen_weights(tmp_path):
    for whole, held in two_processes.in_two_processes(tmp_path, two_processes.bytes_of_blocks):
        assert whole > 10_000
        assert held == pytest.approx(whole / 2, rel=0.01)


def test_processes_with_sharded_weights_may_pass_forward_unequally_often(tmp_path):
    found = two_processes.in_two_processes(tmp_path, two_processes.all_uneven_work)
    for rank, by_layout in enumerate(found):
        for layout, results in by_layout.items():
            expected = two_processes.uneven_work(rank, layout=layout, shards=False)
            assert len(results) == len(expected) > 8
            for result, whole in zip(results, expected, strict=True):
                rounding = 1e-6 + 1e-4 * float(whole.abs().max())  # of sums in another order
                torch.testing.assert_close(result, whole, rtol=1e-5, atol=rounding)


def test_a_flag_on_the_cpu_needs_no_backend_for_it(monkeypatch):
    """NCCL reduces on GPUs alone, and what is said of a rollout lies on the CPU: every algorithm with a critic
    ended there in its first rollout."""

    def gather(values, value):
        values[:] = [value, True]

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed.dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(distributed.dist, "all_gather_object", gather)
    assert distributed.all_reduce_any(torch.tensor(False))


@pytest.mark.gpu
def test_entries_of_several_gpus_meet_on_one(monkeypatch):
    """Those of another process come from another device."""
    sent = []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather_object", lambda value: sent.append(value) or [value, value])
    assert distributed.all_gather_cat(torch.zeros(2, device="cuda")).is_cuda
    assert sent[0].device.type == "cpu"
