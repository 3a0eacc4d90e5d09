"""The progress bar: rollouts done, and within a rollout the episodes played or the minibatches learned."""

import sys
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from lgym.data.rollout.collector import PlayProgress
from lgym.phases import seconds_by_phase

SHOWN_METRICS = (
    ("return", "rollout/return_mean"),
    ("entropy", "policy/entropy"),
    ("KL", "policy/old_kl"),
    ("KL", "policy/approx_kl"),
    ("value", "blackjack/value_sampled"),
    ("value", "maze/value_sampled"),
)
RATED_PHASES = ("playing", "preparing", "learning")


class RolloutProgress(ProgressBar):
    """A line for the run (rollouts, mean return, entropy, KL, turns a second of playing and learning), and a
    line for the current rollout or evaluation: how often all environments have stepped, which moves before
    the first episode ends, and the mean return of the episodes that have ended, the short ones first."""

    _enabled = True
    _run: tqdm | None = None
    _phase: tqdm | None = None
    _steps = 0
    _seconds = 0.0

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._seconds_spent()

    def print(self, *args: Any, **kwargs: Any) -> None:
        tqdm.write(kwargs.get("sep", " ").join(map(str, args)), file=sys.stderr)

    def on_play(self, progress: PlayProgress) -> None:
        """Shows how far a rollout or an evaluation is; called by the data side."""
        if self._enabled:
            self._open_run()
            data = getattr(self.trainer, "datamodule", None)
            if not self.trainer.training:
                phase = f"evaluating episodes, {'greedy' if progress.greedy else 'sampled'}"
            else:
                phase = "playing turns" if getattr(data, "turns_per_rollout", None) else "playing episodes"
            bar = self._begin(phase, progress.done, progress.total)
            self._steps += 1
            shown: dict[str, Any] = {"steps": self._steps}
            if progress.episodes:
                shown["return"] = f"{progress.return_sum / progress.episodes:.3f}"
            bar.set_postfix(shown, refresh=False)
            bar.update(progress.done - bar.n)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._enabled:
            total = getattr(getattr(trainer, "datamodule", None), "minibatches", None)
            bar = self._begin("learning minibatches", batch_idx + 1, total)
            bar.update(batch_idx + 1 - bar.n)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._enabled:
            run, metrics = self._open_run(), trainer.callback_metrics
            shown = {k: f"{float(metrics[name]):.3f}" for k, name in SHOWN_METRICS if name in metrics}
            if "rollout/turns" in metrics:
                rate = float(metrics["rollout/turns"]) / max(self._seconds_spent(), 1e-9)
                shown["turns/s"] = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
            run.set_postfix({"return": "no episode has ended yet", **shown})
            run.n = trainer.current_epoch + 1
            run.refresh()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        for bar in (self._phase, self._run):
            if bar is not None:
                bar.close()
        self._phase = self._run = None

    def _seconds_spent(self) -> float:
        """Seconds of playing and learning since the last call."""
        before = self._seconds
        self._seconds = sum(s for name, s in seconds_by_phase().items() if name.startswith(RATED_PHASES))
        return self._seconds - before

    def _open_run(self) -> tqdm:
        if self._run is None:
            fitting = self.trainer.state.fn == "fit"
            total = self.trainer.max_epochs if fitting else None
            progress: Any = self.trainer.fit_loop.epoch_progress.current
            self._run = tqdm(
                total=total if total and total > 0 else None,
                initial=progress.processed if fitting else 0,  # a resumed current_epoch is one behind
                desc="rollouts",
                unit="rollout",
                disable=not fitting,
                dynamic_ncols=True,
                file=sys.stderr,
            )
        return self._run

    def _begin(self, phase: str, done: int, total: int | None) -> tqdm:
        """The bar of a phase: the one at hand, or a new one where another phase or the same begins again."""
        bar = self._phase
        if bar is None or bar.desc != phase:
            if bar is not None:
                bar.close()
            bar = self._phase = tqdm(
                total=total,
                desc=phase,
                leave=False,
                dynamic_ncols=True,
                file=sys.stderr,
                position=1,
                mininterval=0.3,
                miniters=0,  # a step may end no episode
            )
            self._steps = 0
        if done < bar.n:
            bar.reset(total)
            self._steps = 0
        bar.total = total
        return bar
