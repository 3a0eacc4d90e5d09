"""Group-in-group policy optimization."""

from __future__ import annotations

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym.batch import ReplyBatch, Rollout
from lgym.functional import discounted_returns, group_advantages, state_advantages
from lgym.models import LLMConfig
from lgym.modules.base import DEFAULT_LLM, AnyPolicy, PolicyLearner
from lgym.modules.describe import describe
from lgym.modules.groups import groups_without_signal, require_comparable, require_groups
from lgym.modules.learning_rates import default_optimizer
from lgym.modules.settings import require_discounts, require_weights
from lgym.modules.tokens import CLIPPED, TokenLoss, TokenObjective
from lgym.policies import GenerationPolicy


class GiGPO(PolicyLearner):
    """GiGPO (Feng et al. 2025, arXiv:2505.10978, equation 8): GRPO's advantage of the episode, and one of the turn.

    A = A_episode + step_weight * A_turn

    The second compares what was earned from a turn on with the other turns of the group that saw the same observation, so
    turns of one episode differ in credit. No value is learned.
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
        step_weight: float = 1.0,
        gamma: float = 0.95,
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it acts: any of lgym.policies; by default it speaks freely.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 3e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; null is none.
            loss: clipping, entropy, divergence from the reference and normalisation.
            scale_by_std: divide advantages by the standard deviation of what they were compared with.
            step_weight: weight of the advantage of the turn.
            gamma: discount per turn of what is earned from a turn on.
        """
        super().__init__(llm, policy or GenerationPolicy(), optimizer, lr_scheduler, value_lr_scale=1.0)
        self.objective = TokenObjective(self, loss)
        require_discounts(gamma=gamma)
        require_weights(step_weight=step_weight)
        self.scale_by_std, self.step_weight, self.gamma = scale_by_std, step_weight, gamma

    def setup(self, stage: str) -> None:
        if stage == "fit":
            require_groups(self.trainer, "GiGPO")

    def prepare(self, rollout: Rollout) -> ReplyBatch:
        batch, turns = self.objective.begin(rollout)
        require_comparable(rollout, turns, "GiGPO")
        self.rollout_metrics = describe(rollout) | {"rollout/groups_without_signal": groups_without_signal(turns)}
        groups = turns.groups[turns.episodes]
        of_episodes = group_advantages(turns.returns, turns.groups, scale_by_std=self.scale_by_std)[turns.episodes]
        earned = discounted_returns(
            turns.rewards, torch.zeros_like(turns.rewards), rollout.terminated, rollout.truncated, gamma=self.gamma
        )[rollout.mask]
        of_turns = state_advantages(earned, _states(rollout), groups, scale_by_std=self.scale_by_std)
        return self.objective.credited(batch, of_episodes + self.step_weight * of_turns)

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective.loss(batch)

    def divergence(self, batch: ReplyBatch) -> Tensor:
        return self.objective.divergence(batch)


def _states(rollout: Rollout) -> Tensor:
    """[turns] the number of each turn's observation, whatever the prompt shows beside it."""
    numbers: dict[str, int] = {}
    of_context = [numbers.setdefault(context.observation_text, len(numbers)) for context in rollout.contexts]
    return torch.tensor(of_context)[rollout.context_ids[rollout.mask]]
