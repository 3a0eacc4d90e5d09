"""The end of a run whose policy does what is asked of it, evaluation after evaluation."""

from typing import Any

import lightning as L

from lgym.terminal import say
from lgym.types import ConfigError


class StopOnReturnThreshold(L.Callback):
    """Ends a run when evaluations in a row have reached a threshold; one alone may be luck.

    Such a run, resumed, has nothing left to do, unless it is given another threshold.

    Lightning's `EarlyStopping` with a `stopping_threshold` ends it at the first.

    Args:
        threshold: the least value of the metric.
        evaluations: the number of evaluations in a row that have to reach it.
        monitor: the metric of evaluations.
    """

    def __init__(
        self, threshold: float, evaluations: int = 2, monitor: str = "val_sampled/return_mean"
    ) -> None:
        if evaluations < 1:
            raise ConfigError(f"evaluations is {evaluations}; it must be 1 or more.")
        self.threshold = threshold
        self.evaluations = evaluations
        self.monitor = monitor
        self.reached = 0  # evaluations in a row

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or self.reached >= self.evaluations

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(name for name in trainer.callback_metrics if name.startswith("val")))
            raise ConfigError(
                f"StopOnReturnThreshold's monitor is {self.monitor!r}, and the evaluation logs {known}. Name "
                "one."
            )
        value = float(trainer.callback_metrics[self.monitor])
        self.reached = self.reached + 1 if value >= self.threshold else 0
        if self.reached >= self.evaluations:
            trainer.should_stop = True
            say(
                f"\n{self.monitor} has reached {self.threshold:g} in {self.reached} evaluations in a row "
                f"(now {value:.4g}): the run ends."
            )

    def state_dict(self) -> dict[str, Any]:
        return {"reached": self.reached, "threshold": self.threshold}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("threshold") == self.threshold:
            self.reached = state_dict["reached"]
