"""Advantage actor-critic."""

from __future__ import annotations

from typing import Any

from lgym.modules.advantages import Advantages, gae_advantages, turn_timeline
from lgym.modules.base import PolicyLearner
from lgym.modules.config_checks import require_discounts, require_positive
from lgym.modules.configs import POLICY_GRADIENT, CriticConfig, LossConfig
from lgym.modules.response_batch import RolloutTurns

DEFAULT_CRITIC = CriticConfig()


class A2C(PolicyLearner):
    """A2C: the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783), over turns.

    A_t = R_t - V(s_t)

    R_t is the return to go, bootstrapped where the episode was cut; the loss is not clipped, for a single
    pass.
    """

    has_critic = True

    def __init__(
        self,
        loss: LossConfig = POLICY_GRADIENT,
        critic: CriticConfig = DEFAULT_CRITIC,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        reward_scale: float = 1.0,
        whiten_advantages: bool = True,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            loss: as of every algorithm; by default without clipping, for a single pass.
            critic: the value head's learning.
            gamma: discount per turn.
            gae_lambda: between one-step advantages (0) and whole returns (1).
            reward_scale: factor of rewards in training; reports stay in the environment's units.
            whiten_advantages: shift and scale the advantages of a rollout to mean 0 and standard deviation 1.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, sft.
        """
        super().__init__(loss=loss, **kwargs)
        require_discounts(gamma=gamma, gae_lambda=gae_lambda)
        require_positive(reward_scale=reward_scale)
        self.use_critic(critic, reward_scale)
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.whiten_advantages = whiten_advantages

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        return gae_advantages(
            turns,
            turn_timeline(turns),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            whiten_advantages=self.whiten_advantages,
            scale=self.reward_scale,
        )
