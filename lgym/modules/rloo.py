"""REINFORCE leave-one-out."""

from lgym.functional import leave_one_out_advantages
from lgym.modules.advantages import Advantages
from lgym.modules.policy_learner import PolicyLearner
from lgym.modules.response_batch import RolloutTurns


class RLOO(PolicyLearner):
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740; Kool et al. 2019), for episodes of any number of turns.

    A = R - mean of the others' R

    The baseline of an episode's return R is the mean of the others in its group, the `data.group_size`
    episodes from the same reset seed. No value is learned.
    """

    compares_groups = True

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        return Advantages(
            leave_one_out_advantages(turns.episode_returns, turns.reset_seeds)[turns.episode_index]
        )
