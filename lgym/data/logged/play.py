"""Logged play in place of environments at play."""

from typing import Any

from lgym.data.logged.collector import LoggedCollector
from lgym.data.replay_buffer import ReplayBuffer
from lgym.data.rollout.training_play import TrainingPlay


class LoggedPlay(TrainingPlay):
    """Episodes that were logged, with the random streams of training. They are added to the replay buffer
    once, whatever it holds already."""

    def __init__(self, seed: int, collector: LoggedCollector, replay: ReplayBuffer | None) -> None:
        super().__init__(seed, collector, replay)
        self._kept = False

    def keep(self, batch: Any) -> bool:
        if self.replay is not None and not self._kept:
            self.replay.add(batch)
            self._kept = True
        return True

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._kept = state.get("kept", False)
