"""`trainer.max_time`: a session ends in order when its time is up, also in the middle of playing."""

import time
from datetime import timedelta
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lgym import distributed
from lgym.data.rollout.collector import PlayProgress
from lgym.terminal import say
from lgym.types import ConfigError


class PlayingStopped(Exception):
    """The playing of a rollout is not waited for; what has been played of it is dropped."""


class TimeLimit(Timer):
    """Ends a run when the session's time is up; a resumed run has that time anew.

    Between rollouts it stops the run; while one is played, it has that dropped. Learning from a rollout goes
    on to its end. Several processes look at the clock between rollouts alone, since each plays by itself.

    Args:
        duration: DD:HH:MM:SS, or anything else that Lightning's `max_time` takes.
    """

    def __init__(self, duration: str | timedelta | dict[str, int]) -> None:
        try:
            super().__init__(duration, interval="epoch", verbose=False)
        except (MisconfigurationException, TypeError) as error:
            raise ConfigError(
                f"trainer.max_time is {duration!r}; write days:hours:minutes:seconds, such as 00:00:15:00."
            ) from error
        assert self._duration is not None
        self.duration = timedelta(seconds=self._duration)
        self.is_over = False
        self._trainer: L.Trainer | None = None

    def on_fit_start(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        self._start_time[RunningStage.TRAINING] = time.monotonic()  # before the first evaluation and rollout
        self._trainer = trainer

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keeps the clock that runs already."""

    def on_play(self, progress: PlayProgress) -> None:
        """Called by the data side after each step of the environments."""
        trainer = self._trainer
        if (
            trainer is None
            or not trainer.training
            or progress.done >= progress.total
            or distributed.world_size() > 1
        ):
            return
        if self.time_elapsed() >= self.duration.total_seconds():
            self.is_over = True
            say(f"\ntrainer.max_time ({self.duration}) is over: the rollout at hand is dropped.")
            raise PlayingStopped

    def on_train_epoch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        remaining = self.time_remaining()
        over = trainer.strategy.broadcast(remaining is not None and remaining <= 0)
        if over and trainer.current_epoch + 1 != trainer.max_epochs:
            self.is_over = trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes no time that was spent before."""
