"""Detection of a collapsing run, and what is done about it."""

from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal

import lightning as L

from lgym.callbacks.collapse_criteria import (
    REPORT,
    UPDATE_METRICS,
    CollapseDetector,
    events_table,
    origin_of,
    report,
)
from lgym.callbacks.log_media import log_text
from lgym.modules import LLMLearner
from lgym.modules.snapshot import all_finite, put_back, snapshot
from lgym.terminal import say
from lgym.types import ConfigError

HEALTHY, WARNED, LOWERED, ROLLED_BACK, STOPPED = range(5)


class CollapseGuard(L.Callback):
    """Looks at every rollout for signs of collapse; each rollout that shows one takes the guard a level up.

    1. It warns. 2. It lowers the learning rates. 3. It lowers them again and goes back to the best validated
    weights, with their optimizer and random states, and again at every further sign. 4. When it has done so
    `max_rollbacks` times, it goes back once more, writes `collapse_report.md` and ends the run. After
    `recovery` rollouts in a row without a sign the level is 0 again; learning rates stay lowered. A loss,
    gradient or weight that is not finite goes to 3 at once.

    Best is the highest `monitor` of all evaluations whose weights then played a rollout without a sign; until
    there is one, the weights that the run, or its learning by reinforcement, began with. Rollouts are counted
    on, and so are schedules; the environments and the random state of the data side are not taken back. So a
    rollback is followed by other episodes at a lower rate, and not by the same collapse again, although
    dropout and the like are drawn as before.

    Args:
        act: do more than warn. A guard that only warns changes nothing and keeps no weights.
        monitor: metric of the evaluations that says which weights are best.
        mode: highest (max) or lowest (min) is best.
        lr_factor: factor of the learning rates whenever they are lowered.
        max_rollbacks: number of rollbacks before it ends the run.
        recovery: rollouts in a row without a sign after which the level is 0 again.
        non_finite: go back if a loss, a gradient or a weight is not finite; otherwise that ends the run.
        limits: limits of metrics, as those of `CollapseDetector`.
    """

    KEPT = (
        "level",
        "healthy_rollouts",
        "rollbacks",
        "lr_factor",
        "undone",
        "events",
        "best",
        "pending",
        "rates",
    )

    def __init__(
        self,
        act: bool = True,
        monitor: str = "val_sampled/return_mean",
        mode: Literal["max", "min"] = "max",
        lr_factor: float = 0.5,
        max_rollbacks: int = 3,
        recovery: int = 3,
        non_finite: bool = True,
        **limits: float | None,
    ) -> None:
        for name, value, valid, requirement in (
            ("lr_factor", lr_factor, 0 < lr_factor < 1, "lie between 0 and 1"),
            ("max_rollbacks", max_rollbacks, max_rollbacks >= 0, "be 0 or more"),
            ("recovery", recovery, recovery >= 1, "be 1 rollout or more"),
            ("mode", mode, mode in ("max", "min"), "be max or min"),
        ):
            if not valid:
                raise ConfigError(f"{name} is {value!r}; it must {requirement}.")
        self.act = act
        self.snapshots = 2 if act else 0  # kept at most, each about the size of a checkpoint
        self.monitor = monitor
        self.mode = mode
        self.non_finite = non_finite
        self.factor = lr_factor
        self.max_rollbacks = max_rollbacks
        self.recovery = recovery
        self.detector = CollapseDetector(**limits)
        self.level = HEALTHY
        self.healthy_rollouts = 0  # in a row
        self.rollbacks = 0
        self.lr_factor = 1.0  # of the configured learning rates
        self.undone = 0  # rollouts whose learning was taken back
        self.events: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.pending: dict[str, Any] | None = None  # validated, and yet to play a rollout
        self.rolled_back_after = -1  # rollouts, in this session
        self.rates: list[dict[str, float]] | None = None  # as configured
        self._score = nan  # of the evaluation at hand
        self._eval_interval: int | None = None  # rollouts between two evaluations
        self._faults: list[str] = []  # what was not finite, in the update at hand
        self._had_fault = False

    @property
    def stopped(self) -> bool:
        """True if it has ended the run."""
        return self.level == STOPPED

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes up where a checkpoint left off; learning rates that a user has changed are kept."""
        assert isinstance(pl_module, LLMLearner)
        self._eval_interval = trainer.check_val_every_n_epoch  # a run's last rollout may change that
        if not self.act:
            return
        if self.rates is not None and self.rates != pl_module.configured_rates:
            self.lr_factor = 1.0
        if self.stopped:
            self.level = HEALTHY
            self.rollbacks = 0
        self.rates = pl_module.configured_rates
        pl_module.lr_factor = self.lr_factor
        pl_module.rollouts_undone = self.undone
        pl_module.on_nonfinite = self._faults.append if self.non_finite else None
        if self.best is None:
            self.best = self._snapshot(trainer, pl_module, rollouts=trainer.current_epoch)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.act or trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_last_batch:
            return
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(name for name in trainer.callback_metrics if name.startswith("val")))
            raise ConfigError(
                f"CollapseGuard's monitor is {self.monitor!r}, and the evaluation logs {known}. Name one."
            )
        if self._eval_interval is None or (trainer.current_epoch + 1) % self._eval_interval == 0:
            # An evaluation where a run stops is out of turn: a run that did not stop would not know it.
            self._score = float(trainer.callback_metrics[self.monitor])

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forgets the metrics of the update before: without an update the trainer would report them again."""
        for name in UPDATE_METRICS:
            trainer.callback_metrics.pop(name, None)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Goes back before anybody plays with weights that are not finite."""
        assert isinstance(pl_module, LLMLearner)
        if not self.act or not self.non_finite:
            return
        if not self._faults and not self._had_fault and trainer.is_last_batch and not all_finite(pl_module):
            self._faults.append(f"A weight is not finite after rollout {trainer.current_epoch + 1}.")
        if self._faults:
            if trainer.current_epoch >= pl_module.sft_rollouts:
                self._settle_pending(healthy=not self.detector.detect(pl_module.rollout_metrics))
            self._escalate(trainer, pl_module, self._faults)
            self._faults.clear()
            self._had_fault = True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LLMLearner)
        if not self._had_fault:
            self._judge(trainer, pl_module)
        self._had_fault = False
        self._score = nan
        logged = {"guard/level": float(self.level)}
        if self.act:
            logged |= {"guard/lr_factor": self.lr_factor, "guard/rollbacks": float(self.rollbacks)}
        pl_module.log_dict(logged)

    def _judge(self, trainer: L.Trainer, module: LLMLearner) -> None:
        """Every process has the same metrics, and so comes to the same judgment."""
        done = trainer.current_epoch + 1
        if done <= module.sft_rollouts:  # nothing but demonstrations has been learned
            if self.act:
                self.best = self._snapshot(trainer, module, rollouts=done)
            return
        signs = self.detector.detect(self._metrics(trainer, module))
        self._settle_pending(healthy=not signs)
        if signs:
            self._escalate(trainer, module, signs)
        elif self.level != HEALTHY:
            self.healthy_rollouts += 1
            if self.healthy_rollouts >= self.recovery:
                self.level = HEALTHY
                self._announce(trainer, f"has seen {self.healthy_rollouts} rollouts without a sign", ())
        if self.act and not isnan(self._score) and self.rolled_back_after != done:
            self.pending = self._snapshot(trainer, module, rollouts=done, score=self._score)

    def _metrics(self, trainer: L.Trainer, module: LLMLearner) -> dict[str, float]:
        logged = trainer.callback_metrics
        return module.rollout_metrics | {n: float(logged[n]) for n in UPDATE_METRICS if n in logged}

    def _settle_pending(self, healthy: bool) -> None:
        """Makes the weights that were validated last the best, if better, once they have played a healthy
        rollout."""
        if healthy and self.pending is not None:
            assert self.best is not None
            score, best = self.pending["score"], self.best["score"]
            if best is None or (score > best if self.mode == "max" else score < best):
                self.best = self.pending
        self.pending = None

    def _escalate(self, trainer: L.Trainer, module: LLMLearner, signs: Sequence[str]) -> None:
        self.healthy_rollouts = 0
        if self.act and (self._faults or self.level >= LOWERED):
            self._go_back(trainer, module, signs)
        elif self.level == HEALTHY:
            self.level = WARNED
            self._announce(trainer, "warns", signs)
        elif self.act:
            self.level = LOWERED
            self._lower_rates(module)
            self._announce(
                trainer, f"lowers the learning rates to {self.lr_factor:g} of what is configured", signs
            )

    def _lower_rates(self, module: LLMLearner) -> None:
        self.lr_factor *= self.factor
        module.scale_learning_rates(self.lr_factor)

    def _go_back(self, trainer: L.Trainer, module: LLMLearner, signs: Sequence[str]) -> None:
        """Goes back to the best weights; the last time it leaves them there and ends the run."""
        assert self.best is not None
        done = trainer.current_epoch + 1
        self.rolled_back_after = done - bool(self._faults)  # a rollout with a fault is evaluated afterwards
        put_back(module, trainer.optimizers, self.best)
        self.detector.best = self.best["best_return"]
        self.undone = module.rollouts_undone = done - self.best["rollouts"]
        goal = f"goes back to the weights {origin_of(self.best, self.monitor)}"
        if self.rollbacks < self.max_rollbacks:
            self.rollbacks += 1
            self.level = ROLLED_BACK
            self._lower_rates(module)
            self._announce(
                trainer, f"{goal}, with {self.lr_factor:g} of the configured learning rates", signs
            )
            return
        self.level = STOPPED
        self._announce(trainer, f"{goal} and ends the run", signs)
        trainer.should_stop = True
        # Every process has to ask for the folder, and for the text.
        path = Path(trainer.log_dir or trainer.default_root_dir) / REPORT
        text = report(self.events, self.detector, self._metrics(trainer, module), self.best, self.monitor)
        if trainer.is_global_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            say(f"What led to it, and what to try: {path}")

    def _snapshot(
        self, trainer: L.Trainer, module: LLMLearner, rollouts: int, score: float | None = None
    ) -> dict[str, Any]:
        origin = {"score": score, "number": rollouts, "rollouts": rollouts - self.undone}
        return {**snapshot(module, trainer.optimizers), **origin, "best_return": self.detector.best}

    def _announce(self, trainer: L.Trainer, action: str, signs: Sequence[str]) -> None:
        event = {
            "rollout": trainer.current_epoch + 1,
            "level": self.level,
            "action": action,
            "signs": list(signs),
        }
        self.events.append(event)
        if trainer.is_global_zero:
            say("\n  ".join([f"\nCollapse guard after rollout {event['rollout']}: {action}.", *signs]))
            log_text(trainer, "guard", events_table([event]))

    def state_dict(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.KEPT}, "detector": self.detector.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.KEPT:
            setattr(self, name, state_dict[name])
        self.detector.load_state_dict(state_dict["detector"])
