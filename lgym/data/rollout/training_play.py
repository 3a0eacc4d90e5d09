"""The environments of training and their random streams, as a checkpoint keeps them."""

from typing import Any

import numpy as np

from lgym import distributed
from lgym.data.replay_buffer import ReplayBuffer
from lgym.data.seeds import Purpose, stream
from lgym.types import ConfigError

PURPOSES: tuple[Purpose, ...] = ("actions", "order")


class TrainingPlay:
    """A collector with the generators of sampled actions and of the order of minibatches, and the replay
    buffer of a learner that has one, in this process."""

    def __init__(self, seed: int, collector: Any, replay: ReplayBuffer | None = None) -> None:
        self.collector = collector
        self.replay = replay
        self.rngs = {
            purpose: np.random.default_rng(stream(seed, "fit", purpose, distributed.rank()))
            for purpose in PURPOSES
        }

    def keep(self, batch: Any) -> bool:
        """Add a rollout to the replay buffer, if there is one, and check if all processes hold enough to
        learn from."""
        if self.replay is None:
            return True
        self.replay.add(batch)
        return min(distributed.all_gather_object(len(self.replay))) >= self.replay.learning_starts

    def state_dict(self) -> dict[str, Any]:
        """Tensors, plain numbers and texts."""
        replay = {} if self.replay is None else {"replay": self.replay.state_dict()}
        return replay | {
            "rng": {purpose: rng.bit_generator.state for purpose, rng in self.rngs.items()},
            "collector": self.collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            ConfigError: if this learner draws from a replay buffer, and that of the state did not.
        """
        if self.replay is not None and "replay" not in state:
            raise ConfigError(
                "The checkpoint has no replay buffer: its run learned by an algorithm without one. Begin a "
                "new run, from its adapter by --model.llm.adapter."
            )
        for purpose, rng in self.rngs.items():
            rng.bit_generator.state = state["rng"][purpose]
        if state["collector"]:  # not where logged play was learned from before
            self.collector.load_state_dict(state["collector"])
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
