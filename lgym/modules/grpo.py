"""Group relative policy optimization."""

from __future__ import annotations

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym.batch import ReplyBatch, Rollout
from lgym.functional import group_advantages
from lgym.models import LLMConfig
from lgym.modules.base import DEFAULT_LLM, AnyPolicy, PolicyLearner
from lgym.modules.describe import describe
from lgym.modules.groups import groups_without_signal, require_comparable, require_groups
from lgym.modules.learning_rates import default_optimizer
from lgym.modules.tokens import CLIPPED, TokenLoss, TokenObjective
from lgym.policies import GenerationPolicy


class GRPO(PolicyLearner):
    """GRPO (Shao et al. 2024, arXiv:2402.03300, equation 3), for episodes of any number of turns.

    An episode's return is compared with those of its group, the `data.group_size` episodes from the same reset seed, and
    every token said in it has that advantage. No value is learned. DAPO (arXiv:2503.14476) is `loss.clip_high` above
    `loss.clip_low` and `loss.normalise_by: tokens`; Dr. GRPO (arXiv:2503.20783) `scale_by_std: false` and
    `loss.normalise_by: limit`.
    """

    has_critic = False

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: AnyPolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        loss: TokenLoss = CLIPPED,
        scale_by_std: bool = True,
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it acts: any of lgym.policies; by default it speaks freely.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 3e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; null is none.
            loss: clipping, entropy, divergence from the reference and normalisation.
            scale_by_std: divide a group's advantages by the standard deviation of its returns.
        """
        super().__init__(llm, policy or GenerationPolicy(), optimizer, lr_scheduler, value_lr_scale=1.0)
        self.objective = TokenObjective(self, loss)
        self.scale_by_std = scale_by_std

    def setup(self, stage: str) -> None:
        if stage == "fit":
            require_groups(self.trainer, "GRPO")

    def prepare(self, rollout: Rollout) -> ReplyBatch:
        batch, turns = self.objective.begin(rollout)
        require_comparable(rollout, turns, "GRPO")
        self.rollout_metrics = describe(rollout) | {"rollout/groups_without_signal": groups_without_signal(turns)}
        advantages = group_advantages(turns.returns, turns.groups, scale_by_std=self.scale_by_std)
        return self.objective.credited(batch, advantages[turns.episodes])

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.loss(batch)

    def divergence(self, batch: ReplyBatch) -> Tensor:
        return self.objective.divergence(batch)
