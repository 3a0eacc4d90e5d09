"""Conservative Q-learning between candidates."""

from typing import Any

from torch import Tensor

from lgym.functional import conservative_penalty
from lgym.modules.config_checks import require_weights
from lgym.modules.dqn import DQN, Loss
from lgym.transitions import TransitionBatch


class CQL(DQN):
    """Conservative Q-learning (Kumar et al. 2020, arXiv:2006.04779, equation 4): DQN for play that was logged
    before.

    L = L_DQN + α E[ log Σ_c exp Q(s, c) - Q(s, c_t) ],  Q in standard deviations of returns

    Nobody tries out what a log seldom holds, so that an action overrated by chance stays overrated, and every
    maximum prefers it. The penalty keeps its value below that of what was chosen.
    """

    def __init__(self, alpha: float = 0.1, n_step: int = 1, loss: Loss = "huber", **kwargs: Any) -> None:
        """
        Args:
            alpha: weight of the penalty; 0 is DQN with these defaults.
            n_step: turns of a return before it bootstraps; those behind the first are the log's choices, not
                the policy's.
            loss: see DQN.
            **kwargs: of DQN.
        """
        super().__init__(n_step=n_step, loss=loss, **kwargs)
        require_weights(alpha=alpha)
        self.alpha = alpha

    def loss_terms(self, q: Tensor, batch: TransitionBatch, targets: Tensor) -> dict[str, Tensor]:
        penalty = conservative_penalty(q[batch.prompt_index], batch.choices)
        return super().loss_terms(q, batch, targets) | {"loss/conservative": self.alpha * penalty}
