"""RAFT: learn from the best episodes of each group."""

from typing import Any

from lgym.modules import PolicyLearner
from lgym.modules.advantages import Advantages
from lgym.modules.response_batch import RolloutTurns


class RAFT(PolicyLearner):
    """Reward-ranked fine-tuning (Dong et al. 2023, arXiv:2304.06767), for episodes of any number of turns.

    A = 1 for the best episodes of a group, 0 for the others
    """

    compares_groups = True  # the data module then has to play groups

    def __init__(self, margin: float = 0.0, **kwargs: Any) -> None:
        """
        Args:
            margin: an episode counts as one of the best up to this far below the group's highest return.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, loss, sft.
        """
        super().__init__(**kwargs)
        self.margin = margin

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        returns = turns.episode_returns  # [episodes]
        groups, members = turns.reset_seeds.unique(return_inverse=True)
        best = returns.new_full((len(groups),), -float("inf")).scatter_reduce(0, members, returns, "amax")
        advantages = (returns >= best[members] - self.margin).float()
        return Advantages(advantages[turns.episode_index])  # [turns]
