"""Group-in-group policy optimization."""

from typing import Any

import torch
from torch import Tensor

from lgym.functional import group_advantages, state_advantages
from lgym.modules.advantages import Advantages
from lgym.modules.config_checks import require_discounts, require_weights
from lgym.modules.policy_learner import PolicyLearner
from lgym.modules.response_batch import RolloutTurns
from lgym.rollout import Rollout


class GiGPO(PolicyLearner):
    """GiGPO (Feng et al. 2025, arXiv:2505.10978, equation 8): GRPO's advantage of the episode, and one of the
    turn.

    A = A_episode + step_weight * A_turn

    A_turn compares the returns to go of the group's turns that saw the same observation, so turns of one
    episode differ in credit. No value is learned.
    """

    compares_groups = True

    def __init__(
        self, scale_by_std: bool = True, step_weight: float = 1.0, gamma: float = 0.95, **kwargs: Any
    ) -> None:
        """
        Args:
            scale_by_std: divide advantages by the standard deviation of the returns that were compared.
            step_weight: weight of the advantage of the turn.
            gamma: discount per turn of the returns to go.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, loss, sft.
        """
        super().__init__(**kwargs)
        require_discounts(gamma=gamma)
        require_weights(step_weight=step_weight)
        self.scale_by_std = scale_by_std
        self.step_weight = step_weight
        self.gamma = gamma

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        by_episode = group_advantages(
            turns.episode_returns, turns.reset_seeds, scale_by_std=self.scale_by_std
        )
        groups = turns.reset_seeds[turns.episode_index]
        returns = turns.returns_to_go(self.gamma)
        by_turn = state_advantages(returns, states(turns.rollout), groups, scale_by_std=self.scale_by_std)
        return Advantages(by_episode[turns.episode_index] + self.step_weight * by_turn)


def states(rollout: Rollout) -> Tensor:
    """[turns] the number of each turn's observation with its memories, whatever history the prompt shows."""
    numbers: dict[str, int] = {}
    by_prompt = [numbers.setdefault(prompt.observation_text, len(numbers)) for prompt in rollout.prompts]
    return torch.tensor(by_prompt)[rollout.prompt_index[rollout.mask]]
