"""Proximal policy optimization."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lgym.modules.actor_critic import ActorCritic
from lgym.modules.advantages import AdvantageLevel, Advantages, token_timeline
from lgym.modules.config_checks import require_one_of
from lgym.modules.configs import CriticConfig, LossConfig
from lgym.modules.preparation import evaluate_batch
from lgym.modules.response_batch import RolloutTurns

PPO_LOSS = LossConfig(old_kl_coef=0.1, old_kl_target=0.02)
PPO_CRITIC = CriticConfig(value_warmup=1)


class PPO(ActorCritic):
    """PPO with a clipped objective (Schulman et al. 2017, arXiv:1707.06347, equation 9) and GAE (2015,
    arXiv:1506.02438).

    L = E[ max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) ] + value_coef * (V - R)^2 / 2
        - entropy_coef * H(pi) + old_kl_coef * KL(pi_old || pi) + kl_coef * KL(pi || reference)

    with r = pi / pi_old. The mean is over turns, of free text over the tokens of each
    (`lgym.modules.token_objective`). Where the policy chooses between candidates, its entropy and both its
    divergences are exact.
    """

    def __init__(
        self,
        loss: LossConfig = PPO_LOSS,
        critic: CriticConfig = PPO_CRITIC,
        advantage_level: AdvantageLevel = "turn",
        **kwargs: Any,
    ) -> None:
        """
        Args:
            loss: clipping, entropy, divergences and their weights.
            critic: the value head's learning.
            advantage_level: the steps of GAE: turns, whose tokens all have the turn's advantage; or the
                tokens that the policy chose, from turn to turn past all others: then the discount still
                counts turns, and `gae_lambda` tokens.
            **kwargs: of every algorithm with a critic: llm, policy, optimizer, lr_scheduler, sft, gamma,
                gae_lambda, whiten_advantages.
        """
        super().__init__(loss=loss, critic=critic, **kwargs)
        require_one_of("advantage_level", advantage_level, AdvantageLevel)
        self.advantage_level = advantage_level

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        if self.advantage_level == "turn":
            return super().estimate_advantages(turns)
        with self.inference() as policy:
            values = turns.in_time(evaluate_batch(policy, turns.batch).values)
        action_mask = turns.in_time(turns.batch.action_mask)
        steps = self.gae(turns, token_timeline(turns, values, action_mask))

        def columns(x: Tensor | None) -> Tensor:
            assert x is not None
            return torch.zeros(action_mask.shape).masked_scatter(action_mask, x)

        return replace(
            steps,
            advantages=columns(steps.advantages),
            returns=columns(steps.returns),
            values=columns(steps.values),
        )
