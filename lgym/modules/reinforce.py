"""REINFORCE with a baseline."""

from typing import Any

from torch import Tensor

from lgym import distributed
from lgym.functional import whiten
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
    """REINFORCE (Williams 1992, doi:10.1007/BF00992696), with the rollout's mean as its baseline.

    A_t = G_t - mean of G over all turns of the rollout

    G_t is the return to go of turn t. No value is learned.
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
        if stage == "fit" and getattr(self.trainer.datamodule, "turns_per_rollout", None) is not None:  # type: ignore[attr-defined]
            raise ConfigError(WHOLE_EPISODES)

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        if bool(turns.rollout.cut.any()):  # its return to go is not known
            raise ConfigError(WHOLE_EPISODES)
        returns = turns.returns_to_go(self.gamma)
        return Advantages(distributed.apply_global(whiten if self.whiten_advantages else centered, returns))


def centered(returns: Tensor) -> Tensor:
    """Returns minus their mean."""
    return returns - returns.mean()
