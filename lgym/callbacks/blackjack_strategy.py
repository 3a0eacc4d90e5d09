"""Exact value and hit/stay chart of a Blackjack policy."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from lgym.callbacks.exact_evaluation import ExactEvaluation
from lgym.data import RolloutDataModule
from lgym.envs import blackjack
from lgym.envs.blackjack_chart import strategy_chart
from lgym.types import ConfigError


@dataclass(eq=False)
class BlackjackStrategy(ExactEvaluation):
    """Evaluates the policy on all 280 states: its exact value by dynamic programming, its agreement with
    optimal play and, as a picture, its strategy. If it does so in every rollout, the hands are played by the
    same answers.

    Args:
        every_n_rollouts: interval at which the exact value is computed while training.
        chart_every_n_rollouts: interval at which the chart is drawn.
    """

    num_actions = 2

    def check_env(self, data: RolloutDataModule) -> None:
        env_kwargs = data.env_kwargs or {}
        if not data.env.startswith("Blackjack") or env_kwargs.get("natural") or env_kwargs.get("sab"):
            raise ConfigError(
                "BlackjackStrategy knows Blackjack-v1 under its default rules, and the environment is "
                f"{data.env} with {env_kwargs}. Take the callback out of trainer.callbacks."
            )

    def observations(self) -> list[blackjack.State]:
        return blackjack.states()

    def metrics(self, probabilities: np.ndarray) -> dict[str, float]:
        hit = probabilities[:, blackjack.HIT]
        greedy = hit > 0.5
        return {
            "blackjack/value_sampled": blackjack.policy_value(hit),
            "blackjack/value_greedy": blackjack.policy_value(greedy.astype(float)),
            "blackjack/agreement": blackjack.agreement(greedy),
        }

    def chart(self, probabilities: np.ndarray, title: str) -> Figure:
        return strategy_chart(probabilities[:, blackjack.HIT], title=title)
