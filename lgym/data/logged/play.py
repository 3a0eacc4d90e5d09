"""Logged play in place of environments at play."""

from typing import Any

from lgym.data.logged.collector import LoggedCollector
from lgym.data.replay_buffer import ReplayBuffer
from lgym.data.rollout.training_play import TrainingPlay
from lgym.types import ConfigError


class LoggedPlay(TrainingPlay):
    """Episodes that were logged, with the random streams of training. They are added to the replay buffer
    once, whatever it holds already."""

    def __init__(self, seed: int, collector: LoggedCollector, replay: ReplayBuffer | None) -> None:
        super().__init__(seed, collector, replay)
        self._turns = sum(len(episode.turns) for episode in collector.episodes)
        self._kept = 0  # turns of the log that the buffer has

    def keep(self, batch: Any) -> bool:
        if self.replay is not None and not self._kept:
            self.replay.add(batch)
            self._kept = self._turns
        return True

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._kept = int(state.get("kept", 0))
        if self._kept not in (0, self._turns):
            raise ConfigError(
                f"The run began with a log of {self._kept:,} turns, and data.logged_episodes now has "
                f"{self._turns:,}: resume with the same files, or begin a new run with these."
            )
