"""Optimizer steps of a LightningModule: learning rates, counts, and gradients that are not finite."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from lgym import distributed
from lgym.modules.evaluation import EvaluatedModule
from lgym.modules.learning_rates import rates_of, scale_rates
from lgym.modules.nonfinite import NonFiniteLossError
from lgym.modules.schedules import WarmupCosine
from lgym.phases import phase, seconds_by_phase

TIME_METRICS = {
    "time/environment_seconds": "playing/environments",
    "time/policy_seconds": "playing/policy",
    "time/preparation_seconds": "preparing",
    "time/update_seconds": "learning",
    "time/evaluation_seconds": "evaluating",
}
"""Beginnings of the names of a metric's phases."""


class OptimizedModule(EvaluatedModule, ABC):
    """The optimization hooks of a LightningModule whose epochs are rollouts."""

    def __init__(self, optimizer: OptimizerCallable | None, lr_scheduler: LRSchedulerCallable | None) -> None:
        super().__init__()
        self.given_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.learning_rate = 0.0
        self.configured_rates: list[dict[str, float]] = []
        self.lr_factor = 1.0  # of the configured learning rates
        self.steps_taken = 0  # in the rollout at hand
        self.steps_braked = 0
        self.rollouts_undone = 0  # whose updates were rolled back
        self.on_nonfinite: Callable[[str], None] | None = None  # a guard's, which then puts the run right
        self.rollout_failed = False  # it is not learned from any more
        self.gradient_wanted = False  # a minibatch has been learned from since the last step
        self._seconds_before: dict[str, float] = {}  # by phase, up to the last rollout's end

    @property
    def make_optimizer(self) -> OptimizerCallable:
        """The optimizer that was given, or the usual one."""
        return self.given_optimizer or self.usual_optimizer

    @property
    @abstractmethod
    def usual_optimizer(self) -> OptimizerCallable:
        """The optimizer where none is given."""

    @abstractmethod
    def parameter_groups(self) -> list[dict[str, Any]]:
        """The trained parameters in groups, as torch's optimizers take them."""

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameter_groups())
        scheduler = None if self.make_lr_scheduler is None else self.make_lr_scheduler(optimizer)
        if isinstance(scheduler, WarmupCosine):
            scheduler.fall_over(self.trainer.max_epochs)
        self.configured_rates = rates_of(optimizer)
        if scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}

    @property
    def rollouts_learned(self) -> int:
        """Rollouts that the weights have learned from, before the one at hand."""
        return self.current_epoch - self.rollouts_undone

    def scale_learning_rates(self, factor: float) -> None:
        """Set the learning rates to so many times the configured ones, at the same point of the schedule; a
        resumed optimizer brings its old ones along."""
        self.lr_factor = factor
        scale_rates(self.trainer, self.configured_rates, factor * self.rollout_lr_scale)

    @property
    def rollout_lr_scale(self) -> float:
        """A further factor of the learning rates, in the rollout at hand."""
        return 1.0

    def on_fit_start(self) -> None:
        self._seconds_before = seconds_by_phase()

    def on_train_epoch_start(self) -> None:
        self.rollout_failed = False
        self.scale_learning_rates(self.lr_factor)
        self.learning_rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])
        self.steps_taken = 0
        self.steps_braked = 0

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        with phase("learning/gradients"):
            super().backward(loss, *args, **kwargs)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        with phase("learning"):
            super().optimizer_step(*args, **kwargs)

    def on_train_epoch_end(self) -> None:
        counts = {"optim/steps": float(self.steps_taken), "optim/steps_braked": float(self.steps_braked)}
        self.log_dict({**counts, **self._time_metrics(), "optim/lr": self.learning_rate})

    def _time_metrics(self) -> dict[str, float]:
        """Seconds since the last rollout's end, by what they were spent on."""
        before, self._seconds_before = self._seconds_before, seconds_by_phase()
        spent = {name: total - before.get(name, 0.0) for name, total in self._seconds_before.items()}
        return {
            metric: sum(spent[name] for name in spent if name.startswith(phases))
            for metric, phases in TIME_METRICS.items()
        }

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.rollout_failed or (distributed.world_size() > 1 and not self.gradient_wanted):
            optimizer.zero_grad(set_to_none=True)  # else momentum would take a step
        self.gradient_wanted = False
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if not gradients:
            return
        norm = nn.utils.get_total_norm(gradients)
        if torch.isfinite(norm) and norm > 0:
            self.steps_taken += 1
            self.log("optim/grad_norm", norm, on_step=False, on_epoch=True, batch_size=1)
            return
        if norm != 0 and self._scaler is not None:
            return  # an fp16 scaler takes no step by itself: so it finds its scale
        optimizer.zero_grad(set_to_none=True)  # where nothing was learned, momentum alone would take a step
        if norm != 0:
            rollout = self.current_epoch + 1
            self.fail(
                f"The gradient's norm is {float(norm)} in rollout {rollout}; no step was taken",
                "Resume with a lower learning rate.",
            )

    def fail(self, problem: str, way_out: str) -> None:
        """End the run; where a guard watches, only the learning from the rollout at hand."""
        if self.on_nonfinite is None:
            raise NonFiniteLossError(f"{problem}; the last checkpoint is untouched. {way_out}")
        self.rollout_failed = True
        self.on_nonfinite(problem)

    def skipped_loss(self) -> Tensor | None:
        """The loss of a minibatch that is not learned from: of several processes each has to have one, and
        without one an fp16 scaler would drop what was accumulated before it."""
        zero = self.zero_of_all_parameters()
        if self._scaler is not None:
            zero = zero + sum(0.0 * p.sum() for p in self.parameters() if p.grad is not None)
        return zero if isinstance(zero, Tensor) else None

    def zero_of_all_parameters(self) -> Tensor | float:
        """A zero with a gradient: processes that add up gradients wait for every trained parameter, also for
        those that a minibatch leaves out. Of one process, a plain 0."""
        if distributed.world_size() == 1:
            return 0.0
        return sum(0.0 * p.sum() for p in self.parameters() if p.requires_grad)

    @property
    def _scaler(self) -> Any:
        """The scaler of fp16 gradients, if the trainer has one."""
        return None if self._trainer is None else getattr(self.trainer.precision_plugin, "scaler", None)
