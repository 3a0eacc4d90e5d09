"""Implicit Q-learning between candidates."""

from typing import Any

import torch
from torch import Tensor

from lgym.functional import expectile_loss
from lgym.modules.config_checks import require_positive
from lgym.modules.twin_learner import TwinLearner
from lgym.transitions import TransitionBatch
from lgym.types import ConfigError


class IQL(TwinLearner):
    """Implicit Q-learning (Kostrikov et al. 2021, arXiv:2110.06169), for play that was logged before; of
    language models ILQL (Snell et al. 2022, arXiv:2206.11871). No action is valued that is not in the log.

    L_V = E[ L_2^τ(Q_target(s, c_t) - V(s)) ]                            an expectile in place of a maximum
    L_Q = E[ huber(Q_i(s, c_t) - R - γ^n V(s')) ]
    L_π = E[ -min(exp((Q_target(s, c_t) - V(s)) / λ), m) log π(c_t | s) ]  weighted imitation

    with values in standard deviations of returns.
    """

    def __init__(
        self,
        expectile: float = 0.8,
        advantage_temperature: float = 0.1,
        largest_weight: float = 100.0,
        n_step: int = 1,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            expectile: τ; 1/2 is the log's own value, towards 1 that of its best actions.
            advantage_temperature: λ, in standard deviations of returns: the imitation weighs an advantage of
                so much e times as much.
            largest_weight: m.
            n_step: turns of a return before it bootstraps; those behind the first are the log's choices, not
                the policy's.
            **kwargs: of `ReplayLearner`.
        """
        super().__init__(n_step=n_step, **kwargs)
        if not 0 < expectile < 1:
            raise ConfigError(f"expectile is {expectile}; it must be above 0 and below 1.")
        require_positive(advantage_temperature=advantage_temperature, largest_weight=largest_weight)
        self.expectile = expectile
        self.advantage_temperature = advantage_temperature
        self.largest_weight = largest_weight

    def objective(self, batch: TransitionBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        state, next_index = batch.prompt_index, batch.next_prompt_index.clamp(min=0)
        acted_on = state.unique()
        bootstraps = next_index.unique()
        with torch.no_grad():
            with self.target.in_place():
                _, _, one, other, _ = self.at_prompts(batch, acted_on, self.prompts_values)
            target_q = ((one + other) / 2)[state, batch.choices]
            _, next_values, *_ = self.at_prompts(batch, bootstraps, self.prompts_values)
            following = next_values[next_index].masked_fill(batch.discounts == 0, 0.0)
            targets = batch.rewards + batch.discounts * following
        logprobs, values, *twins, entropies = self.at_prompts(batch, acted_on, self.prompts_values)
        critic, metrics = self.critic_loss(batch, twins, targets)
        advantages = (target_q - values[state]) / self.std
        weights = (advantages.detach() / self.advantage_temperature).exp().clamp(max=self.largest_weight)
        terms = {
            "loss/q": critic,
            "loss/value": expectile_loss(advantages, expectile=self.expectile),
            "loss/policy": -(weights * logprobs[state, batch.choices]),
        }
        return terms, metrics | {"policy/entropy": entropies[state]}
