"""The environments of training and their random streams, as a checkpoint keeps them."""

from typing import Any

import numpy as np

from lgym import distributed
from lgym.data.rollout.collector import Collector
from lgym.data.seeds import Purpose, stream

PURPOSES: tuple[Purpose, ...] = ("actions", "order")


class TrainingPlay:
    """A collector, and the generators of sampled actions and of the order of minibatches in this process."""

    def __init__(self, seed: int, collector: Collector) -> None:
        self.collector = collector
        self.rngs = {
            purpose: np.random.default_rng(stream(seed, "fit", purpose, distributed.rank()))
            for purpose in PURPOSES
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "rng": {purpose: rng.bit_generator.state for purpose, rng in self.rngs.items()},
            "collector": self.collector.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        for purpose, rng in self.rngs.items():
            rng.bit_generator.state = state["rng"][purpose]
        self.collector.load_state_dict(state["collector"])
