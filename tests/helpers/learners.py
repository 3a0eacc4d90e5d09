"""The learning side of a run as the data side sees it, without a model."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from helpers import tiny
from helpers.scripted import CandidateScorer
from lgym.batch import ResponseBatch


class RecordingLearner:
    """Acts by a scripted policy, notes the rollouts that it prepares, and learns nothing."""

    tokenizer, context_length, sft_rollouts, imitation_weight = tiny.tokenizer(), 4096, 0, 0.0
    needs_whole_episodes = single_pass = uses_replay = False
    open_settings = frozenset({"gamma", "gae_lambda", "demonstrations"})

    def __init__(self, policy: Any = None, batch: ResponseBatch | None = None, **settings: Any) -> None:
        self.policy = policy or CandidateScorer()
        self.batch = batch
        self.rollouts: list[Any] = []
        for name, value in settings.items():
            setattr(self, name, value)

    def uses_sft(self, rollouts):
        return self.imitation_weight > 0 or rollouts < self.sft_rollouts

    def sft_epochs(self, minibatches, update_epochs):
        return update_epochs + minibatches

    def inference(self):
        return nullcontext(self.policy)

    def behavior(self, rollouts):
        return self.inference()

    def prepare(self, rollout):
        self.rollouts.append(rollout)
        return self.batch, {"rollout/turns": float(rollout.mask.sum())}


def attach(data: Any, learner: Any) -> Any:
    """The data module as its trainer calls it."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data.trainer = SimpleNamespace(
        lightning_module=learner, max_epochs=9, progress_bar_callback=None, strategy=strategy
    )
    return data
