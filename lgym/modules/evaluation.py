"""Evaluation: the returns of its episodes by torchmetrics, over all devices."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, SumMetric

from lgym import distributed
from lgym.functional import mean_margin, wilson_margin
from lgym.rollout import EpisodeStatistics

MODES = ("greedy", "sampled")
"""The modes of the evaluation loaders, in their order."""


class EpisodeMetrics(nn.Module):
    """Mean return and success rate with 95 % intervals, lengths, and the share that goes in circles, of the
    episodes of one mode."""

    def __init__(self) -> None:
        super().__init__()
        self.returns, self.squares, self.lengths, self.length_squares, self.looping, self.successes = (
            MeanMetric(dist_sync_fn=_gather).set_dtype(torch.float64) for _ in range(6)
        )
        self.count, self.known = (SumMetric(dist_sync_fn=_gather).set_dtype(torch.float64) for _ in range(2))

    def _apply(self, fn: Any, recurse: bool = True) -> "EpisodeMetrics":
        """Stays on the CPU and in float64, wherever and in whatever precision the model is."""
        return self

    def update(self, statistics: EpisodeStatistics) -> None:
        returns = statistics.returns.cpu().double()
        self.returns.update(returns)
        self.squares.update(returns.square())
        lengths = statistics.lengths.cpu().double()
        self.lengths.update(lengths)
        self.length_squares.update(lengths.square())
        if statistics.looping is not None:
            self.looping.update(statistics.looping.cpu().double())
        self.count.update(torch.ones_like(returns))
        self.successes.update((statistics.successes == 1).double())
        self.known.update((~statistics.successes.isnan()).double())

    def compute(self) -> dict[str, Tensor]:
        """`return_mean`, `return_std`, `return_ci95` (half the width of the interval, with n - 1 for n;
        infinite for one episode), `length_mean` and `length_std` in turns, and `looping_rate`, the
        share of episodes that went in circles until the time limit. Where somebody said of any episode
        whether it succeeded: `success_rate`, and `success_ci95` (from there to the farther end of Wilson's
        interval, which is not empty where all or none succeeded)."""
        mean, n = self.returns.compute(), self.count.compute()
        variance = (self.squares.compute() - mean.square()).clamp(min=0.0)
        length = self.lengths.compute()
        result = {
            "return_mean": mean,
            "return_std": variance.sqrt(),
            "return_ci95": mean_margin((variance * n / (n - 1)).sqrt(), int(n)),
            "length_mean": length,
            "length_std": (self.length_squares.compute() - length.square()).clamp(min=0.0).sqrt(),
            "looping_rate": self.looping.compute(),
        }
        rate = self.successes.compute()
        if self.known.compute() == 0:
            return result
        return result | {"success_rate": rate, "success_ci95": wilson_margin(rate, n)}

    def reset(self) -> None:
        for metric in self.children():
            metric.reset()  # type: ignore[operator]


class EvaluatedModule(L.LightningModule):
    """The evaluation hooks of a LightningModule: episodes in both modes, for validate and test."""

    def __init__(self) -> None:
        super().__init__()
        self.initial_evaluation: dict[str, float] = {}  # metrics before the first step
        self.evaluations = nn.ModuleDict({mode: EpisodeMetrics() for mode in MODES})

    def validation_step(self, batch: EpisodeStatistics, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluations[MODES[dataloader_idx]].update(batch)  # type: ignore[operator]

    def test_step(self, batch: EpisodeStatistics, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validation_step(batch, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch

    def _log_evaluation(self, stage: str) -> None:
        values: dict[str, Tensor] = {}
        for mode, metrics in self.evaluations.items():
            values |= {f"{stage}_{mode}/{name}": v.float() for name, v in metrics.compute().items()}  # type: ignore[operator]
            metrics.reset()  # type: ignore[operator]
        if self._trainer is None or not self.trainer.sanity_checking:
            for name, value in values.items():
                self.log(name, value, sync_dist=False)
            return
        self.initial_evaluation = {name: float(value) for name, value in values.items()}
        for logger in self.trainer.loggers:  # Lightning logs nothing of an evaluation before the first step
            logger.log_metrics(self.initial_evaluation, step=0)


def _gather(state: Tensor, group: Any = None) -> list[Tensor]:
    """Everyone's state. torchmetrics' own way takes the device of the state, and no GPU's backend gathers
    from the CPU."""
    return distributed.all_gather_object(state)
