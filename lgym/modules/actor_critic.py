"""The base class of algorithms with a critic."""

from typing import Any

from lgym.modules.advantages import Advantages, Timeline, gae_advantages, turn_timeline
from lgym.modules.base import PolicyLearner
from lgym.modules.config_checks import require_discounts, require_positive
from lgym.modules.configs import CriticConfig
from lgym.modules.response_batch import RolloutTurns

DEFAULT_CRITIC = CriticConfig()


class ActorCritic(PolicyLearner):
    """A policy with a value head, and generalized advantage estimation over turns (Schulman et al. 2015,
    arXiv:1506.02438)."""

    has_critic = True

    def __init__(
        self,
        critic: CriticConfig = DEFAULT_CRITIC,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        reward_scale: float = 1.0,
        whiten_advantages: bool = True,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            critic: the value head's learning.
            gamma: discount per turn.
            gae_lambda: between one-step advantages (0) and whole returns (1).
            reward_scale: factor of rewards in training; reports stay in the environment's units. Bring
                returns to the size of 1 with it, which is where the value head learns fastest.
            whiten_advantages: shift and scale the advantages of a rollout to mean 0 and standard deviation 1.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, loss, sft.
        """
        super().__init__(**kwargs)
        require_discounts(gamma=gamma, gae_lambda=gae_lambda)
        require_positive(reward_scale=reward_scale)
        self.critic = critic
        self.reward_scale = reward_scale
        self.policy.detach_value = critic.detach_value
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.whiten_advantages = whiten_advantages

    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        return self.gae(turns, turn_timeline(turns))

    def gae(self, turns: RolloutTurns, timeline: Timeline) -> Advantages:
        """GAE with this algorithm's settings along a timeline."""
        return gae_advantages(
            turns,
            timeline,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            whiten_advantages=self.whiten_advantages,
            scale=self.reward_scale,
        )
