"""REINFORCE with a baseline."""

from typing import Any

import torch
from torch import Tensor

from lgym import distributed
from lgym.functional import leave_one_out_advantages, whiten
from lgym.modules.advantages import Advantages
from lgym.modules.config_checks import require_discounts
from lgym.modules.configs import POLICY_GRADIENT, LossConfig
from lgym.modules.policy_learner import PolicyLearner
from lgym.modules.response_batch import RolloutTurns
from lgym.types import ConfigError

WHOLE_EPISODES = (
    "REINFORCE learns from whole episodes: set data.episodes_per_rollout, not data.turns_per_rollout."
)


class REINFORCE(PolicyLearner):
    """REINFORCE (Williams 1992, doi:10.1007/BF00992696), with a baseline for each turn (Peters and Schaal
    2008, doi:10.1016/j.neunet.2008.02.003).

    A_t = G_t - mean of G_t over the other episodes of the rollout

    G_t is the return to go of turn t of an episode; one that no other episode came to tells nothing. No value
    is learned.
    """

    needs_whole_episodes = True

    def __init__(
        self,
        loss: LossConfig = POLICY_GRADIENT,
        gamma: float = 0.99,
        whiten_advantages: bool = True,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            loss: as of every algorithm; by default without clipping, for a single pass,
                and with `old_kl_coef: 1`, which holds the policy near the behavior policy.
            gamma: discount per turn.
            whiten_advantages: divide advantages by their standard deviation over the rollout too; without it
                the loss's weights are those beside returns as they are.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, sft.
        """
        super().__init__(loss=loss, **kwargs)
        require_discounts(gamma=gamma)
        self.gamma = gamma
        self.whiten_advantages = whiten_advantages

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage != "fit":
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if getattr(data, "turns_per_rollout", None) is not None:
            raise ConfigError(WHOLE_EPISODES)
        if getattr(data, "episodes_per_rollout", None) == 1:
            raise ConfigError(
                "data.episodes_per_rollout is 1, and REINFORCE compares a turn with those of other episodes: "
                "set it to 2 or more."
            )

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        if bool(turns.rollout.cut.any()):  # its return to go is not known
            raise ConfigError(WHOLE_EPISODES)
        columns = torch.stack([turns.returns_to_go(self.gamma), turns.turn_numbers], dim=1)
        return Advantages(distributed.apply_global(self._advantages, columns))

    def _advantages(self, columns: Tensor) -> Tensor:
        """The advantages of [turns, 2] returns to go, with the number of each turn in its episode."""
        advantages = leave_one_out_advantages(*columns.unbind(1))
        return whiten(advantages) if self.whiten_advantages else advantages
