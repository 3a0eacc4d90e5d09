"""The base class of algorithms with a critic."""

from collections.abc import Set
from dataclasses import replace
from typing import Any

from lgym.modules.advantages import Advantages, Timeline, gae_advantages, turn_timeline
from lgym.modules.config_checks import require_discounts
from lgym.modules.configs import CriticConfig
from lgym.modules.policy_learner import PolicyLearner
from lgym.modules.response_batch import RolloutTurns

DEFAULT_CRITIC = CriticConfig()


class ActorCritic(PolicyLearner):
    """A policy with a value head, and generalized advantage estimation over turns (Schulman et al. 2015,
    arXiv:1506.02438)."""

    has_critic = True

    def __init__(
        self,
        critic: CriticConfig = DEFAULT_CRITIC,
        gamma: float | None = None,
        gae_lambda: float | None = None,
        whiten_advantages: bool = True,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            critic: the value head's learning.
            gamma: discount per turn; null takes 0.99, or what random play decides (`lgym.data.discounts`).
            gae_lambda: between one-step advantages (0) and whole returns (1); null takes 0.95, or what random
                play decides.
            whiten_advantages: shift and scale the advantages of a rollout to mean 0 and standard deviation 1;
                without it they are divided by the standard deviation of returns.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, loss, sft.
        """
        super().__init__(**kwargs)
        self.given_discounts = {"gamma": gamma, "gae_lambda": gae_lambda}
        require_discounts(**self.given_discounts)
        detach = self.policy.generates_text if critic.detach_value is None else critic.detach_value
        self.critic = replace(critic, detach_value=detach)
        self.policy.detach_value = detach
        self.whiten_advantages = whiten_advantages

    @property
    def open_settings(self) -> Set[str]:
        return super().open_settings | {k for k, value in self.given_discounts.items() if value is None}

    @property
    def gamma(self) -> float:
        """Discount per turn."""
        return self.discount("gamma", self.given_discounts["gamma"])

    @property
    def gae_lambda(self) -> float:
        """Discount of advantages, beside `gamma`."""
        return self.discount("gae_lambda", self.given_discounts["gae_lambda"])

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        return self.gae(turns, turn_timeline(turns))

    def gae(self, turns: RolloutTurns, timeline: Timeline) -> Advantages:
        """GAE with this algorithm's settings along a timeline; the value head's statistics follow its
        returns."""
        self.update_features(turns.rollout.prompts)
        return gae_advantages(
            turns,
            timeline,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            whiten_advantages=self.whiten_advantages,
            value_head=self.value_head,
        )
