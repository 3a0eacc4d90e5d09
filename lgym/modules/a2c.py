"""Advantage actor-critic."""

from typing import Any

from lgym.modules.actor_critic import ActorCritic
from lgym.modules.configs import POLICY_GRADIENT, LossConfig


class A2C(ActorCritic):
    """A2C: the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783), over turns.

    A_t = R_t - V(s_t)

    R_t is the return to go, bootstrapped where the episode was cut; the loss is not clipped, for a single
    pass.
    """

    def __init__(self, loss: LossConfig = POLICY_GRADIENT, gae_lambda: float = 1.0, **kwargs: Any) -> None:
        """
        Args:
            loss: as of every algorithm; by default without clipping, for a single pass,
                and with `old_kl_coef: 1`, which holds the policy near the behavior policy.
            gae_lambda: between one-step advantages (0) and whole returns (1).
            **kwargs: of every algorithm with a critic: llm, policy, optimizer, lr_scheduler, sft, critic,
                gamma, whiten_advantages.
        """
        super().__init__(loss=loss, gae_lambda=gae_lambda, **kwargs)
