"""Group relative policy optimization."""

from typing import Any

from lgym.functional import group_advantages
from lgym.modules.advantages import Advantages
from lgym.modules.policy_learner import PolicyLearner
from lgym.modules.response_batch import RolloutTurns


class GRPO(PolicyLearner):
    """GRPO (Shao et al. 2024, arXiv:2402.03300, equation 3), for episodes of any number of turns.

    A = (R - mean of the group's R) / their standard deviation

    An episode's return R is compared with those of its group, the `data.group_size` episodes from the same
    reset seed, and every token of it has that advantage. No value is learned. DAPO (arXiv:2503.14476) is
    `loss.clip_high` above `loss.clip_low` and `loss.loss_aggregation: token_mean`; Dr. GRPO
    (arXiv:2503.20783) `scale_by_std: false` and `loss.loss_aggregation: max_length`.
    """

    compares_groups = True

    def __init__(self, scale_by_std: bool = True, **kwargs: Any) -> None:
        """
        Args:
            scale_by_std: divide a group's advantages by the standard deviation of its returns.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, loss, sft.
        """
        super().__init__(**kwargs)
        self.scale_by_std = scale_by_std

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        advantages = group_advantages(
            turns.episode_returns, turns.reset_seeds, scale_by_std=self.scale_by_std
        )
        return Advantages(advantages[turns.episode_index])
