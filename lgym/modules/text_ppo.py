"""Proximal policy optimization of what is said, token by token."""

from __future__ import annotations

from typing import Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym.batch import ReplyBatch, Rollout
from lgym.functional import gae
from lgym.models import LLMConfig
from lgym.modules.base import DEFAULT_LLM, AnyPolicy, PolicyLearner
from lgym.modules.credit import token_grid, turn_grid
from lgym.modules.describe import describe
from lgym.modules.learning_rates import default_optimizer
from lgym.modules.pooled import explained
from lgym.modules.settings import require_counts, require_discounts, require_scales
from lgym.modules.tokens import CLIPPED, TokenLoss, TokenObjective, require_one_of
from lgym.modules.whitening import whitened
from lgym.policies import GenerationPolicy

Credit = Literal["turn", "token"]


class TextPPO(PolicyLearner):
    """PPO (Schulman et al. 2017, arXiv:1707.06347) with GAE (2015, arXiv:1506.02438), for policies that speak.

    With `credit: turn` GAE runs over turns, and every token of a turn has its advantage. With `credit: token` it runs over
    the tokens that the policy chose, from turn to turn past those that it did not: the discount counts turns, `gae_lambda`
    tokens.
    For choices between candidates alone, `PPO` knows the divergences exactly.
    """

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: AnyPolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        loss: TokenLoss = CLIPPED,
        credit: Credit = "turn",
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        reward_scale: float = 1.0,
        value_coef: float = 0.5,
        value_lr_scale: float = 5.0,
        value_warmup: int = 0,
        detach_value: bool = False,
        whiten_advantages: bool = True,
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it acts: any of lgym.policies; by default it speaks freely.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 3e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; null is none.
            loss: clipping, entropy, divergence from the reference and normalisation.
            credit: whether turns or tokens have advantages and values of their own.
            gamma: discount per turn.
            gae_lambda: between one-step advantages (0) and whole returns (1).
            reward_scale: what rewards are multiplied by before learning from them; reports stay in the environment's units.
            value_coef: weight of the value loss.
            value_lr_scale: the value head's learning rate, as a multiple of the optimizer's.
            value_warmup: rollouts at the start, behind those of `sft_rollouts`, in which only the value is learned, and the
                divergence from the policy that played holds the policy where it is: so the adapters learn to tell states
                apart before they learn to act.
            detach_value: keep the value loss's gradient out of the language model, so that only the head learns from it.
            whiten_advantages: shift and scale the advantages of a rollout to mean 0 and standard deviation 1.
        """
        super().__init__(llm, policy or GenerationPolicy(), optimizer, lr_scheduler, value_lr_scale=value_lr_scale)
        self.objective = TokenObjective(self, loss, value_coef)
        require_one_of("credit", credit, Credit)
        require_discounts(gamma=gamma, gae_lambda=gae_lambda)
        require_scales(reward_scale=reward_scale)
        require_counts(value_warmup=value_warmup)
        self.value_warmup = value_warmup
        self.gamma, self.gae_lambda, self.reward_scale = gamma, gae_lambda, reward_scale
        self.policy.detach_value = detach_value
        self.whiten_advantages = whiten_advantages
        self.credit = credit

    def prepare(self, rollout: Rollout) -> ReplyBatch:
        batch, turns = self.objective.begin(rollout)
        self.rollout_metrics = describe(rollout)
        grid = turn_grid(rollout, turns.rewards)
        if self.credit == "token":
            recorded = self.objective.recorded(batch)
            grid = token_grid(
                grid, self.objective.in_time(recorded.values), self.objective.in_time(batch.mask), rollout.mask
            )
        advantages, returns = gae(
            grid.rewards,
            grid.values,
            grid.next_values,
            grid.terminated,
            grid.truncated,
            gamma=self.gamma ** grid.ends.float(),
            gae_lambda=self.gae_lambda,
        )
        advantages, returns, values = (x[grid.real] for x in (advantages, returns, grid.values))
        self.rollout_metrics["value/explained_variance"] = explained(values, returns)
        advantages = whitened(rollout, advantages) if self.whiten_advantages else advantages * self.reward_scale
        if self.credit == "token":
            mask = self.objective.in_time(batch.mask)
            advantages, returns = (torch.zeros(mask.shape).masked_scatter(mask, x) for x in (advantages, returns))
        return self.objective.credited(batch, advantages, returns)

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.loss(batch)

    def divergence(self, batch: ReplyBatch) -> Tensor:
        return self.objective.divergence(batch)
