"""What Blackjack players look at: the exact value of the policy, and its hit/stay chart."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger

from lgym.data import RolloutDataModule
from lgym.data.questions import action_of
from lgym.envs import blackjack
from lgym.envs.blackjack_chart import chart_array, strategy_chart
from lgym.modules import PolicyLearner
from lgym.policies import CandidatePolicy
from lgym.types import ConfigError


class BlackjackStrategy(L.Callback):
    """Asks the policy about all 280 states; logs its exact value by dynamic programming, its agreement with optimal play
    and, as a picture, its strategy. If it does so in every rollout, the hands are played by the same answers."""

    def __init__(self, every_n_rollouts: int = 1, chart_every_n_rollouts: int = 5) -> None:
        """
        Args:
            every_n_rollouts: how often the exact value is computed while training.
            chart_every_n_rollouts: how often the chart is drawn.
        """
        self.every_n_rollouts = every_n_rollouts
        self.chart_every_n_rollouts = chart_every_n_rollouts

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        rules = {name: on for name, on in (data.env_kwargs or {}).items() if name in ("natural", "sab") and on}
        if not data.env.startswith("Blackjack") or rules:
            raise ConfigError(
                f"BlackjackStrategy knows Blackjack-v1 under its default rules, and the environment is {data.env} with "
                f"{data.env_kwargs or {}}. Take the callback out of trainer.callbacks."
            )
        if not isinstance(getattr(pl_module, "policy", None), CandidatePolicy):
            raise ConfigError(
                "BlackjackStrategy asks for the probabilities of hit and stay, which only the candidate policy knows. Take "
                "the callback out of trainer.callbacks."
            )
        if self.every_n_rollouts == 1 and data.history == 0:  # otherwise later turns would have nothing to go on from
            data.foresight.expect(blackjack.states())

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        last = trainer.current_epoch + 1 == trainer.max_epochs
        if trainer.current_epoch % self.every_n_rollouts == 0 or last:
            hit = self._log(trainer, pl_module)
            if trainer.current_epoch % self.chart_every_n_rollouts == 0 or last:
                self._draw(trainer, hit)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._draw(trainer, self._log(trainer, pl_module))

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._draw(trainer, self._log(trainer, pl_module))

    def _log(self, trainer: L.Trainer, module: Any) -> np.ndarray:
        hit = hit_probabilities(trainer.datamodule, module)  # type: ignore[attr-defined]
        greedy = hit > 0.5
        module.log_dict(
            {
                "blackjack/value_sampled": blackjack.policy_value(hit),
                "blackjack/value_greedy": blackjack.policy_value(greedy.astype(float)),
                "blackjack/agreement": blackjack.agreement(greedy),
            },
            rank_zero_only=True,
        )
        return hit

    def _draw(self, trainer: L.Trainer, hit: np.ndarray) -> None:
        if isinstance(trainer.logger, TensorBoardLogger):
            picture = chart_array(strategy_chart(hit, title=f"Rollout {trainer.current_epoch + 1}"))
            trainer.logger.experiment.add_image("strategy", picture, trainer.global_step, dataformats="HWC")


def hit_probabilities(data: RolloutDataModule, module: PolicyLearner) -> np.ndarray:
    """[280] the policy's probability of hitting, in the order of `blackjack.states()`."""
    contexts = data.contexts(blackjack.states())
    with module.acting() as policy:
        logprobs, _ = data.foresight.informed(policy).evaluate(contexts)
    hits = np.zeros((len(contexts), logprobs.shape[1]))
    for row, context in enumerate(contexts):
        for column, candidate in enumerate(context.candidates):
            hits[row, column] = action_of(data.agent, candidate) == blackjack.HIT
    return (logprobs.double().exp().numpy() * hits).sum(1)
