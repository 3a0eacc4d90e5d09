"""Notices that a run is collapsing, and does something about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from lgym.callbacks.collapse_criteria import OF_LEARNING, CollapseDetector, build_criteria
from lgym.callbacks.collapse_report import REPORT, as_markdown, origin_of, report
from lgym.modules import PolicyLearner
from lgym.modules.pooled import pooled
from lgym.modules.snapshot import all_finite, put_back, snapshot
from lgym.terminal import say
from lgym.types import ConfigError

HEALTHY, WARNED, LOWERED, ROLLED_BACK, STOPPED = range(5)


class CollapseGuard(L.Callback):
    """Looks at every rollout for signs of collapse; each rollout that shows one takes the guard a level up.

    1. It warns. 2. It lowers the learning rates. 3. It lowers them again and goes back to the best validated weights, with
    their optimizer and random states, and again at every further sign. 4. When it has done so `max_rollbacks` times, it
    goes back once more, writes `collapse_report.md` and ends the run. After `recovery` rollouts in a row without a sign
    the level is 0 again; learning rates stay lowered. A loss, gradient or weight that is not finite goes to 3 at once.

    Best is the highest `monitor` of all evaluations whose weights then played a rollout without a sign; until there is one,
    the weights that the run, or its learning by reinforcement, began with. Rollouts are counted on, and so are schedules;
    the environments and what the data side draws are not taken back. So what follows a rollback is other episodes at a
    lower rate, and not the same collapse again, although dropout and the like are drawn as before.
    """

    KEPT = ("level", "well", "rollbacks", "lr_factor", "undone", "events", "best", "pending", "rates")

    def __init__(
        self,
        act: bool = True,
        monitor: str = "val_sampled/return_mean",
        mode: Literal["max", "min"] = "max",
        lr_factor: float = 0.5,
        max_rollbacks: int = 3,
        recovery: int = 3,
        max_dominant_action: float | None = 0.95,
        min_action_information: float | None = 0.02,
        max_repetition: float | None = 0.5,
        min_parse_rate: float | None = 0.5,
        max_kl: float | None = 0.5,
        min_entropy: float | None = 0.005,
        min_variance_within: float | None = 0.01,
        min_variance_across: float | None = 0.01,
        min_explained_variance: float | None = -0.5,
        non_finite: bool = True,
    ) -> None:
        """A limit that is null is switched off. A sign counts from the first rollout on that was on the right side of its
        limit, so that what a run begins with is not held against it. The last four count only while the mean return is
        below the run's best by more than chance, since a policy that has learned all there is to learn looks like that too.

        Args:
            act: whether it does more than warn. What only warns changes nothing and keeps no weights.
            monitor: metric of the evaluations that says which weights are best.
            mode: whether the highest (max) or the lowest (min) is.
            lr_factor: what the learning rates are multiplied by whenever they are lowered.
            max_rollbacks: how often it goes back before it ends the run.
            recovery: rollouts in a row without a sign after which the level is 0 again.
            max_dominant_action: `rollout/dominant_action`: one action for nearly everything. Null where that is right.
            min_action_information: `rollout/action_information`, as a share of its highest: the same answer to every state.
                Likewise.
            max_repetition: `rollout/repetition`: replies that go round in circles.
            min_parse_rate: `rollout/parse_rate`, as a share of its highest.
            max_kl: `policy/approx_kl`, nats: one update took the policy this far.
            min_entropy: `policy/entropy`, nats.
            min_variance_within: `rollout/reward_variance_within`, as a share of its highest.
            min_variance_across: `rollout/reward_variance_across`, as a share of its highest.
            min_explained_variance: `value/explained_variance`.
            non_finite: go back where a loss, a gradient or a weight is not finite; otherwise that ends the run.
        """
        _require(lr_factor, max_rollbacks, recovery, mode)
        self.act, self.monitor, self.mode, self.non_finite = act, monitor, mode, non_finite
        self.factor, self.max_rollbacks, self.recovery = lr_factor, max_rollbacks, recovery
        self.watch = CollapseDetector(
            build_criteria(
                max_dominant_action=max_dominant_action,
                min_action_information=min_action_information,
                max_repetition=max_repetition,
                min_parse_rate=min_parse_rate,
                max_kl=max_kl,
                min_entropy=min_entropy,
                min_variance_within=min_variance_within,
                min_variance_across=min_variance_across,
                min_explained_variance=min_explained_variance,
            )
        )
        self.level = HEALTHY
        self.well = 0  # rollouts in a row without a sign
        self.rollbacks = 0
        self.lr_factor = 1.0  # of the configured learning rates
        self.undone = 0  # rollouts whose learning was taken back
        self.events: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.pending: dict[str, Any] | None = None  # validated, and yet to play a rollout
        self.rolled_back_after = -1  # rollouts, in this session
        self.rates: list[dict[str, float]] | None = None  # as configured
        self._score: float | None = None
        self._every: int | None = None  # rollouts between two evaluations
        self._fault = ""
        self._faulty = False

    @property
    def snapshots(self) -> int:
        """How many it keeps at most, each about the size of a checkpoint."""
        return 2 if self.act else 0

    @property
    def stopped(self) -> bool:
        """Whether it has ended the run."""
        return self.level == STOPPED

    # -- the run's hooks ------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes up where a checkpoint left off. What a user has given other learning rates has them."""
        assert isinstance(pl_module, PolicyLearner)
        self._every = trainer.check_val_every_n_epoch  # a run's last rollout may change that
        if not self.act:
            return
        if self.rates is not None and self.rates != pl_module.configured_rates:
            self.lr_factor = 1.0
        if self.stopped:
            self.level, self.well, self.rollbacks = HEALTHY, 0, 0
        self.rates = pl_module.configured_rates
        pl_module.lr_factor, pl_module.rollouts_undone = self.lr_factor, self.undone
        pl_module.on_fault = self._note_fault if self.non_finite else None
        if self.best is None:
            self.best = self._keep(trainer, pl_module, rollouts=trainer.current_epoch)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.act or trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_last_batch:
            return
        if self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(name for name in trainer.callback_metrics if name.startswith("val")))
            raise ConfigError(f"CollapseGuard's monitor is {self.monitor!r}, and the evaluation tells of {known}. Name one.")
        if self._every is None or (trainer.current_epoch + 1) % self._every == 0:  # one where a run stops is out of turn:
            self._score = float(trainer.callback_metrics[self.monitor])  # a run that did not stop would not know it

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Forgets what was learned of the rollout before: where nothing is, the trainer would tell of that again."""
        for name in OF_LEARNING:
            trainer.callback_metrics.pop(name, None)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Before anybody plays with weights that are not finite."""
        assert isinstance(pl_module, PolicyLearner)
        if not self.act or not self.non_finite:
            return
        if not self._fault and not self._faulty and trainer.is_last_batch and not all_finite(pl_module):
            self._fault = f"A weight is not finite after rollout {trainer.current_epoch + 1}."
        if self._fault:
            if trainer.current_epoch >= pl_module.sft_rollouts:
                self._settle(well=not self.watch.look(pooled(pl_module.rollout_metrics)))
            self._go_back(trainer, pl_module, [self._fault])
            self._fault, self._faulty = "", True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, PolicyLearner)
        if not self._faulty:
            self._judge(trainer, pl_module)
        self._faulty, self._score = False, None
        told = {"guard/level": float(self.level)}
        if self.act:
            told |= {"guard/lr_factor": self.lr_factor, "guard/rollbacks": float(self.rollbacks)}
        pl_module.log_dict(told)

    # -- what to do -----------------------------------------------------------------------------------------------------

    def _judge(self, trainer: L.Trainer, module: PolicyLearner) -> None:
        """Everyone has the same metrics, and so comes to the same."""
        done = trainer.current_epoch + 1
        if done <= module.sft_rollouts:  # nothing but demonstrations has been learned
            if self.act:
                self.best = self._keep(trainer, module, rollouts=done)
            return
        signs = self.watch.look(self._metrics(trainer, module))
        self._settle(well=not signs)
        if signs:
            self._climb(trainer, module, signs)
        elif self.level != HEALTHY:
            self._recover(trainer)
        if self.act and self._score is not None and self.rolled_back_after != done:
            self.pending = self._keep(trainer, module, rollouts=done, score=self._score)

    def _metrics(self, trainer: L.Trainer, module: PolicyLearner) -> dict[str, float]:
        logged = trainer.callback_metrics
        return pooled(module.rollout_metrics) | {name: float(logged[name]) for name in OF_LEARNING if name in logged}

    def _settle(self, well: bool) -> None:
        """The weights that were validated last have played a rollout: it says whether they may be gone back to."""
        pending, self.pending = self.pending, None
        if well and pending is not None and self._better(pending, self.best):
            self.best = pending

    def _better(self, one: dict[str, Any], other: dict[str, Any] | None) -> bool:
        if one["score"] != one["score"]:
            return False
        if other is None or other["score"] is None:
            return True
        return one["score"] > other["score"] if self.mode == "max" else one["score"] < other["score"]

    def _climb(self, trainer: L.Trainer, module: PolicyLearner, signs: Sequence[str]) -> None:
        self.well = 0
        if self.level == HEALTHY:
            self.level = WARNED
            self._tell(trainer, "warns", signs)
        elif not self.act:
            return
        elif self.level == WARNED:
            self.level = LOWERED
            self._lower(module)
            self._tell(trainer, f"lowers the learning rates to {self.lr_factor:g} of what is configured", signs)
        else:
            self._go_back(trainer, module, signs)

    def _recover(self, trainer: L.Trainer) -> None:
        self.well += 1
        if self.well >= self.recovery:
            self.level = HEALTHY
            self._tell(trainer, f"has seen {self.well} rollouts without a sign", ())

    def _lower(self, module: PolicyLearner) -> None:
        self.lr_factor *= self.factor
        module.scale_learning_rates(self.lr_factor)

    def _go_back(self, trainer: L.Trainer, module: PolicyLearner, signs: Sequence[str]) -> None:
        """To the best weights; the last time to leave them there."""
        assert self.best is not None
        done = trainer.current_epoch + 1
        self.well, self.rolled_back_after = 0, done - bool(self._fault)  # a rollout with a fault is evaluated afterwards
        put_back(module, trainer.optimizers, self.best)
        self.watch.best = None if self.best["best_return"] is None else (*self.best["best_return"],)
        self.undone = module.rollouts_undone = done - self.best["rollouts"]
        origin = origin_of(self.best, self.monitor)
        goal = f"goes back to the weights {origin}"
        if self.rollbacks < self.max_rollbacks:
            self.rollbacks, self.level = self.rollbacks + 1, ROLLED_BACK
            self._lower(module)
            self._tell(trainer, f"{goal}, with {self.lr_factor:g} of the configured learning rates", signs)
            return
        self.level = STOPPED
        self._tell(trainer, f"{goal} and ends the run", signs)
        trainer.should_stop = True
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # asked of all processes, as is what follows
        text = report(self.events, self.watch, self._metrics(trainer, module), origin, self.monitor)
        if trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / REPORT).write_text(text, encoding="utf-8")
            say(f"What led to it, and what to try: {folder / REPORT}")

    def _keep(self, trainer: L.Trainer, module: PolicyLearner, rollouts: int, score: float | None = None) -> dict[str, Any]:
        """A snapshot with its score, after how many rollouts it was taken, and from how many of them it has learned."""
        best = None if self.watch.best is None else list(self.watch.best)
        origin = {"score": score, "number": rollouts, "rollouts": rollouts - self.undone, "best_return": best}
        return {**snapshot(module, trainer.optimizers), **origin}

    def _tell(self, trainer: L.Trainer, action: str, signs: Sequence[str]) -> None:
        """On the terminal, in TensorBoard's text and in the checkpoint."""
        event = {"rollout": trainer.current_epoch + 1, "level": self.level, "action": action, "signs": list(signs)}
        self.events.append(event)
        if trainer.is_global_zero:
            say(f"\nCollapse guard after rollout {event['rollout']}: {action}." + "".join(f"\n  {sign}" for sign in signs))
            if isinstance(trainer.logger, TensorBoardLogger):
                trainer.logger.experiment.add_text("guard", as_markdown([event]), trainer.global_step)

    def _note_fault(self, message: str) -> None:
        self._fault = self._fault or message

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.KEPT}, "watch": self.watch.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.KEPT:
            setattr(self, name, state_dict[name])
        self.watch.load_state_dict(state_dict["watch"])


def _require(lr_factor: float, max_rollbacks: int, recovery: int, mode: str) -> None:
    if not 0 < lr_factor < 1:
        raise ConfigError(f"lr_factor is {lr_factor}; it must lie between 0 and 1.")
    if max_rollbacks < 0:
        raise ConfigError(f"max_rollbacks is {max_rollbacks}; it must be 0 or more.")
    if recovery < 1:
        raise ConfigError(f"recovery is {recovery}; it must be 1 rollout or more.")
    if mode not in ("max", "min"):
        raise ConfigError(f"mode is {mode!r}; choose max or min.")
