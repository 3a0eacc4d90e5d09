"""The base of algorithms whose action values have a head of their own, beside the policy."""

from abc import ABC
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lgym.functional import categorical_entropy, huber_loss
from lgym.models.action_value_head import ActionValueHead
from lgym.modules.replay_learner import TD_ERROR, ReplayLearner
from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch


class TwinLearner(ReplayLearner, ABC):
    """Twin action values by `lgym.models.action_value_head`, of which the average counts; the policy stays
    the language model's own choice between candidates."""

    def configure_model(self) -> None:
        super().configure_model()
        if self.policy.llm.action_value_head is None:
            self.policy.llm.action_value_head = ActionValueHead.beside(self.policy.llm.value_head)

    def prompts_values(self, prompts: Sequence[Prompt]) -> tuple[Tensor, ...]:
        """Log-probabilities [n, C] of the candidates of n prompts, [n] state values, two estimates [n, C] of
        action values, and the policy's [n] entropies in nats."""
        policy: Any = self.policy
        logprobs, values, q = policy.action_values(prompts)
        q = q.masked_fill(logprobs.isneginf()[..., None], -torch.inf)
        return logprobs, values, q[..., 0], q[..., 1], categorical_entropy(logprobs)

    def critic_loss(
        self, batch: TransitionBatch, twins: Sequence[Tensor], targets: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean of both estimates' losses [B], and its metrics.

        Args:
            batch: B transitions, of U prompts.
            twins: [U, C] each.
            targets: [B] of the values of what was chosen, in rewards.
        """
        chosen = [q[batch.prompt_index, batch.choices] for q in twins]
        std = self.std
        losses = [huber_loss(values / std, targets / std, delta=self.huber_delta) for values in chosen]
        mean = (chosen[0] + chosen[1]) / 2
        metrics = {"q/mean": mean, TD_ERROR: (mean - targets).abs() / std}
        return (losses[0] + losses[1]) / 2, metrics
