"""Callbacks that make a run look bad on purpose, note what stood at the end of every rollout, and compare
processes."""

from __future__ import annotations

from typing import Any, ClassVar

import lightning as L
import torch

from lgym import distributed
from lgym.modules.checkpointing import rng_state, trained_state
from lgym.modules.snapshot import copied


class Spoiler(L.Callback):
    """To be named after a guard among the callbacks, so that it notes what the guard has left."""

    seen: ClassVar[list[dict[str, Any]]] = []
    """Each rollout of all runs of a test: weights, optimizer state, random state, whether all weights
    are finite."""

    def __init__(
        self, rollouts: list[int] | None = None, metric: str = "rollout/dominant_action", value: float = 1.0
    ) -> None:
        """
        Args:
            rollouts: which are to look bad, from 1.
            metric: what is to look bad about them.
            value: how bad.
        """
        self.rollouts, self.metric, self.value = rollouts or [], metric, value

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        torch.rand(1)  # something that is drawn from torch's own generator
        if trainer.current_epoch + 1 in self.rollouts:
            pl_module.rollout_metrics[self.metric] = self.value

    def on_train_epoch_end(self, trainer, pl_module):
        weights = trained_state(pl_module, pl_module.state_dict())
        state = {
            "weights": weights,
            "optimizer": trainer.optimizers[0].state_dict()["state"],
            "rng": rng_state(),
            "finite": torch.tensor(all(bool(p.isfinite().all()) for p in weights.values())),
        }
        self.seen.append(copied(state))


class Alike(L.Callback):
    """Ends a run in which one process has come to other weights, or remembers something else, than
    another."""

    def on_train_epoch_end(self, trainer, pl_module):
        weights = [p.detach().flatten() for p in pl_module.parameters() if p.requires_grad]
        first, *others = distributed.all_gather_object(torch.cat(weights))
        assert all(torch.equal(first, other) for other in others), (
            "The processes have gone ways of their own."
        )
        first, *others = distributed.all_gather_object(trainer.datamodule.episodic_memory.state_dict())
        assert first["entries"], "Nothing is remembered."
        assert all(other == first for other in others), "Each process has memories of its own."
