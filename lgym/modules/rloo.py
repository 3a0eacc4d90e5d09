"""REINFORCE leave-one-out."""

from __future__ import annotations

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym.batch import ReplyBatch, Rollout
from lgym.functional import leave_one_out_advantages
from lgym.models import LLMConfig
from lgym.modules.base import DEFAULT_LLM, AnyPolicy, PolicyLearner
from lgym.modules.describe import describe
from lgym.modules.groups import groups_without_signal, require_comparable, require_groups
from lgym.modules.learning_rates import default_optimizer
from lgym.modules.tokens import CLIPPED, TokenLoss, TokenObjective
from lgym.policies import GenerationPolicy


class RLOO(PolicyLearner):
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740; Kool et al. 2019), for episodes of any number of turns.

    The baseline of an episode's return is the mean of the others in its group, the `data.group_size` episodes from the same
    reset seed. No value is learned.
    """

    has_critic = False

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: AnyPolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        loss: TokenLoss = CLIPPED,
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it acts: any of lgym.policies; by default it speaks freely.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 3e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; null is none.
            loss: clipping, entropy, divergence from the reference and normalisation.
        """
        super().__init__(llm, policy or GenerationPolicy(), optimizer, lr_scheduler, value_lr_scale=1.0)
        self.objective = TokenObjective(self, loss)

    def setup(self, stage: str) -> None:
        if stage == "fit":
            require_groups(self.trainer, "RLOO")

    def prepare(self, rollout: Rollout) -> ReplyBatch:
        batch, turns = self.objective.begin(rollout)
        require_comparable(rollout, turns, "RLOO")
        self.rollout_metrics = describe(rollout) | {"rollout/groups_without_signal": groups_without_signal(turns)}
        advantages = leave_one_out_advantages(turns.returns, turns.groups)
        return self.objective.credited(batch, advantages[turns.episodes])

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.loss(batch)

    def divergence(self, batch: ReplyBatch) -> Tensor:
        return self.objective.divergence(batch)
