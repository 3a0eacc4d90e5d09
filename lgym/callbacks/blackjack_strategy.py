"""Exact value and hit/stay chart of a Blackjack policy."""

from dataclasses import dataclass

import gymnasium
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
        is_known = data.env.startswith("Blackjack")
        rules = (gymnasium.spec(data.env).kwargs if is_known else {}) | env_kwargs
        self._sab = bool(rules.get("sab"))
        if not is_known or (rules.get("natural") and not self._sab):
            raise ConfigError(
                "BlackjackStrategy knows Blackjack-v1 where a natural does not pay 1.5, and the environment "
                f"is {data.env} with {env_kwargs}. Take the callback out of trainer.callbacks."
            )

    def observations(self) -> list[blackjack.State]:
        return blackjack.states()

    def metrics(self, probabilities: np.ndarray) -> dict[str, float]:
        hit = probabilities[:, blackjack.HIT]
        greedy = hit > 0.5
        return {
            "blackjack/value_sampled": blackjack.policy_value(hit, sab=self._sab),
            "blackjack/value_greedy": blackjack.policy_value(greedy.astype(float), sab=self._sab),
            "blackjack/agreement": blackjack.agreement(greedy),
        }

    def chart(self, probabilities: np.ndarray, title: str) -> Figure:
        return strategy_chart(probabilities[:, blackjack.HIT], title=title)
