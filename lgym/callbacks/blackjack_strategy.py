"""Exact value and hit/stay chart of a Blackjack policy."""

from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger

from lgym.data import RolloutDataModule
from lgym.data.prompts.action_candidates import action_of
from lgym.envs import blackjack
from lgym.envs.blackjack_chart import chart_array, strategy_chart
from lgym.modules import LLMLearner
from lgym.policies import CandidatePolicy
from lgym.types import ConfigError


@dataclass(eq=False)
class BlackjackStrategy(L.Callback):
    """Evaluates the policy on all 280 states: its exact value by dynamic programming, its agreement with
    optimal play and, as a picture, its strategy. If it does so in every rollout, the hands are played by the
    same answers.

    Args:
        every_n_rollouts: interval at which the exact value is computed while training.
        chart_every_n_rollouts: interval at which the chart is drawn.
    """

    every_n_rollouts: int = 1
    chart_every_n_rollouts: int = 5

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        env_kwargs = data.env_kwargs or {}
        if not data.env.startswith("Blackjack") or env_kwargs.get("natural") or env_kwargs.get("sab"):
            raise ConfigError(
                "BlackjackStrategy knows Blackjack-v1 under its default rules, and the environment is "
                f"{data.env} with {env_kwargs}. Take the callback out of trainer.callbacks."
            )
        if not isinstance(getattr(pl_module, "policy", None), CandidatePolicy):
            raise ConfigError(
                "BlackjackStrategy asks for the probabilities of hit and stay, which only the candidate "
                "policy knows. Take the callback out of trainer.callbacks."
            )
        # With a history, or not in every rollout, later turns would have nothing to go on from.
        if self.every_n_rollouts == 1 and data.history == 0:
            data.prefetched_observations = blackjack.states()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch
        last = epoch + 1 == trainer.max_epochs
        if epoch % self.every_n_rollouts == 0 or last:
            self._evaluate(trainer, pl_module, draws=epoch % self.chart_every_n_rollouts == 0 or last)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit":
            self._evaluate(trainer, pl_module)

    on_test_epoch_end = on_validation_epoch_end

    def _evaluate(self, trainer: L.Trainer, module: Any, *, draws: bool = True) -> None:
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
        if draws and isinstance(trainer.logger, TensorBoardLogger):
            picture = chart_array(strategy_chart(hit, title=f"Rollout {trainer.current_epoch + 1}"))
            trainer.logger.experiment.add_image("strategy", picture, trainer.global_step, dataformats="HWC")


def hit_probabilities(data: RolloutDataModule, module: LLMLearner) -> np.ndarray:
    """[280] the policy's probability of hitting, in the order of `blackjack.states()`."""
    prompts = data.prompts(blackjack.states())
    with module.inference() as policy:
        assert isinstance(policy, CandidatePolicy)
        policy.prefetch(prompts)
        logprobs = policy.distributions(prompts)
    hits = np.zeros(logprobs.shape)
    for row, prompt in zip(hits, prompts, strict=True):
        is_hit = [action_of(data.agent, candidate) == blackjack.HIT for candidate in prompt.candidates]
        row[: len(is_hit)] = is_hit
    return (logprobs.double().exp().numpy() * hits).sum(1)
