"""Fixtures: a tiny random model with a byte-level tokenizer, made in memory, and the tiniest environment to
learn."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from helpers import tiny

if workers := os.environ.get(
    "PYTEST_XDIST_WORKER_COUNT"
):  # each has its share of the cores, and so has what it starts
    threads = max(1, (os.cpu_count() or 1) // int(workers))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _seed_and_threads():
    """Every test starts from the same randomness, whatever ran before it."""
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def tokenizer():
    return tiny.tokenizer()


@pytest.fixture
def llm():
    """A tiny value-head model with adapters, in float64 so that equal means equal."""
    return tiny.llm(dtype=torch.float64)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """The tiny model as a folder, as `model:` in a YAML takes it."""
    folder = tmp_path_factory.mktemp("tiny-model")
    tiny.save(folder)
    return folder
