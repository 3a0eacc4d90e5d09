"""The replay buffer that draws by how wrong values were."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgym.data.replay_buffer import ReplayBuffer
from lgym.transitions import TransitionBatch
from lgym.types import ConfigError

SMALLEST_ERROR = 1e-2
"""Added to every error, in standard deviations of returns, so that what is known is drawn too."""


class PrioritizedReplayBuffer(ReplayBuffer):
    """A replay buffer that draws transitions in proportion to the error of their values when last learned.

    P(i) = p_i^α / Σ_j p_j^α with p_i = |δ_i| + ε, and new transitions at the largest p of all; their loss
    counts w_i = (N P(i))^-β / max_j w_j, since what is drawn more often would count more often too.

    "Prioritized Experience Replay", Schaul et al. 2015, arXiv:1511.05952, equation 1 and section 3.4, where β
    rises to 1; here it stays.

    Args:
        alpha: α, from 0, which draws all equally often, to 1.
        beta: β, from 0, which leaves the bias in, to 1.
        **kwargs: of `ReplayBuffer`, but for `balanced`.
    """

    def __init__(self, alpha: float = 0.6, beta: float = 0.4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.balanced:
            raise ConfigError(
                "data.replay: balanced draws prompts equally often, and a PrioritizedReplayBuffer by their "
                "errors: take ReplayBuffer for the one, or leave balanced out for the other."
            )
        for name, value in {"alpha": alpha, "beta": beta}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"data.replay: {name} is {value}; it must be from 0 to 1.")
        self.alpha = alpha
        self.beta = beta
        self._priorities = torch.zeros(0, dtype=torch.float64)  # p of each transition

    def add(self, batch: TransitionBatch) -> None:
        largest = float(self._priorities.max()) if len(self._priorities) else 1.0
        new = torch.full((len(batch),), largest, dtype=torch.float64)
        self._priorities = torch.cat([self._priorities, new])[-self.capacity :]
        super().add(batch)

    def sample(self, rng: np.random.Generator) -> TransitionBatch:
        powers = self._priorities**self.alpha
        rows = self._draw_by(powers, rng)
        weights = powers[rows] ** -self.beta  # N and the sum cancel out in w / max w
        return self._batch().select(
            rows, weights=(weights / weights.max()).float(), take_errors=partial(self._take_errors, rows)
        )

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"priorities": self._priorities}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ReplayBuffer`; what another buffer kept has no errors yet."""
        super().load_state_dict(state)
        self._priorities = state.get("priorities", torch.ones(len(self), dtype=torch.float64))

    def _take_errors(self, rows: Tensor, errors: Tensor) -> None:
        errors = errors.cpu().double()  # MPS has no float64
        known = errors.isfinite()  # CollapseGuard may go on behind a loss that is not
        self._priorities[rows[known]] = errors[known] + SMALLEST_ERROR
