"""Advantage actor-critic."""

from __future__ import annotations

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym.batch import ReplyBatch, Rollout
from lgym.functional import gae
from lgym.models import LLMConfig
from lgym.modules.base import DEFAULT_LLM, AnyPolicy, PolicyLearner
from lgym.modules.describe import describe
from lgym.modules.learning_rates import default_optimizer
from lgym.modules.pooled import explained
from lgym.modules.settings import require_discounts, require_scales
from lgym.modules.tokens import UNCLIPPED, TokenLoss, TokenObjective, require_one_pass
from lgym.modules.whitening import whitened
from lgym.policies import GenerationPolicy


class A2C(PolicyLearner):
    """A2C: the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783), over turns.

    Advantages are returns less the value of the state before the turn; the loss is not clipped, for a single pass.
    """

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: AnyPolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        loss: TokenLoss = UNCLIPPED,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        reward_scale: float = 1.0,
        value_coef: float = 0.5,
        value_lr_scale: float = 5.0,
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
            gamma: discount per turn.
            gae_lambda: between one-step advantages (0) and whole returns (1).
            reward_scale: what rewards are multiplied by before learning from them; reports stay in the environment's units.
            value_coef: weight of the value loss.
            value_lr_scale: the value head's learning rate, as a multiple of the optimizer's.
            detach_value: keep the value loss's gradient out of the language model, so that only the head learns from it.
            whiten_advantages: shift and scale the advantages of a rollout to mean 0 and standard deviation 1.
        """
        super().__init__(llm, policy or GenerationPolicy(), optimizer, lr_scheduler, value_lr_scale=value_lr_scale)
        self.objective = TokenObjective(self, loss, value_coef)
        require_discounts(gamma=gamma, gae_lambda=gae_lambda)
        require_scales(reward_scale=reward_scale)
        self.gamma, self.gae_lambda, self.reward_scale = gamma, gae_lambda, reward_scale
        self.policy.detach_value = detach_value
        self.whiten_advantages = whiten_advantages

    def setup(self, stage: str) -> None:
        if stage == "fit":
            require_one_pass(self.trainer, "A2C", self.objective.settings)

    def prepare(self, rollout: Rollout) -> ReplyBatch:
        batch, turns = self.objective.begin(rollout)
        self.rollout_metrics = describe(rollout)
        values, mask = rollout.values, rollout.mask
        advantages, returns = gae(
            turns.rewards,
            values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        self.rollout_metrics["value/explained_variance"] = explained(values[mask], returns[mask])
        chosen = advantages[mask]
        chosen = whitened(rollout, chosen) if self.whiten_advantages else chosen * self.reward_scale
        return self.objective.credited(batch, chosen, returns[mask])

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.loss(batch)

    def divergence(self, batch: ReplyBatch) -> Tensor:
        return self.objective.divergence(batch)
