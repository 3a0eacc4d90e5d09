"""Proximal policy optimization."""

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lgym.modules.actor_critic import ActorCritic
from lgym.modules.advantages import AdvantageLevel, Advantages, token_timeline
from lgym.modules.base import AnyPolicy
from lgym.modules.config_checks import require_one_of
from lgym.modules.configs import CriticConfig, LossConfig
from lgym.modules.preparation import evaluate_batch
from lgym.modules.response_batch import RolloutTurns
from lgym.modules.schedules import WarmupCosine
from lgym.policies import CandidatePolicy

PPO_LOSS = LossConfig(old_kl_coef=0.1, old_kl_target=0.02)
PPO_CRITIC = CriticConfig(value_warmup=1)


def ppo_optimizer(parameters: Iterable[Any]) -> Optimizer:
    """The optimizer where none is configured, of policies that choose between candidates."""
    return torch.optim.AdamW(parameters, lr=8e-4, weight_decay=0.0)


def text_optimizer(parameters: Iterable[Any]) -> Optimizer:
    """The optimizer where none is configured, of policies that write text: at the rate above a few rollouts
    undo what demonstrations have taught."""
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0)


def ppo_schedule(optimizer: Optimizer) -> LRScheduler:
    """The schedule where none is configured."""
    return WarmupCosine(optimizer, warmup=2)


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
        policy: AnyPolicy | None = None,
        loss: LossConfig = PPO_LOSS,
        critic: CriticConfig = PPO_CRITIC,
        advantage_level: AdvantageLevel = "turn",
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = ppo_schedule,
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
            optimizer: any torch optimizer by class_path; null is AdamW with learning rate 8e-4, or 1e-4 where
                the policy writes text.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; by
                default two rollouts of warm-up and a fall to a tenth over the run, `trainer.max_epochs`. Null
                is none.
            **kwargs: of every algorithm with a critic: llm, sft, gamma, gae_lambda, whiten_advantages.
        """
        policy = policy or CandidatePolicy()
        default_optimizer = text_optimizer if policy.generates_text else ppo_optimizer
        super().__init__(
            policy=policy,
            loss=loss,
            critic=critic,
            optimizer=optimizer or default_optimizer,
            lr_scheduler=lr_scheduler,
            **kwargs,
        )
        require_one_of("advantage_level", advantage_level, AdvantageLevel)
        self.advantage_level = advantage_level

    @property
    def sft_lr_scale(self) -> float:
        is_open = self.make_optimizer is text_optimizer and self.sft.lr_scale is None
        return 8.0 if is_open else super().sft_lr_scale

    @property
    def value_lr_scale(self) -> float:
        is_open = self.make_optimizer is text_optimizer and self.critic.value_lr_scale is None
        return 40.0 if is_open else super().value_lr_scale

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

        return Advantages(
            columns(steps.advantages), columns(steps.returns), columns(steps.values), steps.metrics
        )
