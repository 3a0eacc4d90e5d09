"""REINFORCE with a baseline."""

from __future__ import annotations

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym import ranks
from lgym.batch import ReplyBatch, Rollout
from lgym.functional import discounted_returns, whiten
from lgym.models import LLMConfig
from lgym.modules.base import DEFAULT_LLM, AnyPolicy, PolicyLearner
from lgym.modules.describe import describe
from lgym.modules.learning_rates import default_optimizer
from lgym.modules.settings import WHOLE_EPISODES, require_discounts, require_whole_episodes
from lgym.modules.tokens import UNCLIPPED, TokenLoss, TokenObjective, require_one_pass
from lgym.policies import GenerationPolicy
from lgym.types import ConfigError


class REINFORCE(PolicyLearner):
    """REINFORCE (Williams 1992, doi:10.1007/BF00992696), with the rollout's mean as its baseline.

    A_t = G_t - mean G, over all turns of the rollout, G_t being what was earned from turn t on. No value is learned.
    """

    has_critic = False

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: AnyPolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        loss: TokenLoss = UNCLIPPED,
        gamma: float = 0.99,
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
            whiten_advantages: divide advantages by their standard deviation over the rollout too.
        """
        super().__init__(llm, policy or GenerationPolicy(), optimizer, lr_scheduler, value_lr_scale=1.0)
        self.objective = TokenObjective(self, loss)
        require_discounts(gamma=gamma)
        self.gamma, self.whiten_advantages = gamma, whiten_advantages

    def setup(self, stage: str) -> None:
        if stage == "fit":
            require_one_pass(self.trainer, "REINFORCE", self.objective.settings)
            require_whole_episodes(self.trainer, "REINFORCE")

    def prepare(self, rollout: Rollout) -> ReplyBatch:
        if bool(rollout.cut.any()):
            raise ConfigError(WHOLE_EPISODES.format("REINFORCE"))
        batch, turns = self.objective.begin(rollout)
        self.rollout_metrics = describe(rollout)
        earned = discounted_returns(
            turns.rewards, torch.zeros_like(turns.rewards), rollout.terminated, rollout.truncated, gamma=self.gamma
        )[rollout.mask]
        advantages = ranks.jointly(whiten if self.whiten_advantages else _centred, earned)
        return self.objective.credited(batch, advantages)

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.loss(batch)

    def divergence(self, batch: ReplyBatch) -> Tensor:
        return self.objective.divergence(batch)


def _centred(earned: Tensor) -> Tensor:
    return earned - earned.mean()
