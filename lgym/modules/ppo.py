"""Proximal policy optimization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lgym.modules.advantages import AdvantageLevel, Advantages, gae_advantages, token_timeline, turn_timeline
from lgym.modules.base import AnyPolicy, PolicyLearner
from lgym.modules.config_checks import require_discounts, require_one_of, require_positive
from lgym.modules.configs import CriticConfig, LossConfig
from lgym.modules.preparation import evaluate_batch
from lgym.modules.response_batch import RolloutTurns
from lgym.policies import CandidatePolicy

PPO_LOSS = LossConfig(entropy_coef=0.01, old_kl_coef=0.3, target_kl=0.2)
PPO_CRITIC = CriticConfig(value_warmup=1)


class PPO(PolicyLearner):
    """PPO with a clipped objective (Schulman et al. 2017, arXiv:1707.06347, equation 9) and GAE (2015,
    arXiv:1506.02438).

    L = E[ max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) ] + value_coef * (V - R)^2 / 2
        - entropy_coef * H(pi) + old_kl_coef * KL(pi_old || pi) + kl_coef * KL(pi || reference)

    with r = pi / pi_old. The mean is over turns, of free text over the tokens of each
    (`lgym.modules.token_objective`). Where the policy chooses between candidates, its entropy and both its
    divergences are exact.
    """

    has_critic = True

    def __init__(
        self,
        policy: AnyPolicy | None = None,
        loss: LossConfig = PPO_LOSS,
        critic: CriticConfig = PPO_CRITIC,
        advantage_level: AdvantageLevel = "turn",
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        reward_scale: float = 1.0,
        whiten_advantages: bool = True,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            policy: how it acts, by class_path: any of lgym.policies; by default it chooses between
                candidates.
            loss: clipping, entropy, divergences and their weights.
            critic: the value head's learning.
            advantage_level: the steps of GAE: turns, whose tokens all have the turn's advantage; or the
                tokens that the policy chose, from turn to turn past all others: then the discount still
                counts turns, and `gae_lambda` tokens.
            gamma: discount per turn.
            gae_lambda: between one-step advantages (0) and whole returns (1).
            reward_scale: factor of rewards in training; reports stay in the environment's units. Bring
                returns to the size of 1 with it, which is where the value head learns fastest.
            whiten_advantages: shift and scale the advantages of a rollout to mean 0 and standard deviation 1.
            **kwargs: of every algorithm: llm, optimizer, lr_scheduler, sft.
        """
        super().__init__(policy=policy or CandidatePolicy(), loss=loss, **kwargs)
        require_one_of("advantage_level", advantage_level, AdvantageLevel)
        require_discounts(gamma=gamma, gae_lambda=gae_lambda)
        require_positive(reward_scale=reward_scale)
        self.use_critic(critic, reward_scale)
        self.advantage_level = advantage_level
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.whiten_advantages = whiten_advantages

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        settings: dict[str, Any] = {
            "gamma": self.gamma,
            "gae_lambda": self.gae_lambda,
            "whiten_advantages": self.whiten_advantages,
            "scale": self.reward_scale,
        }
        if self.advantage_level == "turn":
            return gae_advantages(turns, turn_timeline(turns), **settings)
        with self.inference() as policy:
            values = turns.in_time(evaluate_batch(policy, turns.batch).values)
        action_mask = turns.in_time(turns.batch.action_mask)
        steps = gae_advantages(turns, token_timeline(turns, values, action_mask), **settings)

        def columns(x: Tensor | None) -> Tensor:
            assert x is not None
            return torch.zeros(action_mask.shape).masked_scatter(action_mask, x)

        return Advantages(
            columns(steps.advantages), columns(steps.returns), columns(steps.values), steps.metrics
        )
