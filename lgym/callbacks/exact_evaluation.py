"""Base of callbacks that evaluate a candidate policy on all states of an environment."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import lightning as L
import numpy as np
from matplotlib.figure import Figure

from lgym.callbacks.log_media import log_picture
from lgym.data import RolloutDataModule
from lgym.data.prompts.action_candidates import action_of
from lgym.envs.figures import chart_array
from lgym.modules import LLMLearner
from lgym.policies import CandidatePolicy
from lgym.types import ConfigError


@dataclass(eq=False)
class ExactEvaluation(L.Callback, ABC):
    """Evaluates the policy on all states: exact metrics and, as a picture, its strategy. If it does so in
    every rollout, the episodes are played by the same answers.

    Args:
        every_n_rollouts: interval at which the metrics are computed while training.
        chart_every_n_rollouts: interval at which the chart is drawn.
    """

    every_n_rollouts: int = 1
    chart_every_n_rollouts: int = 5

    num_actions: ClassVar[int]

    @abstractmethod
    def check_env(self, data: RolloutDataModule) -> None:
        """Refuse an environment whose exact values are not known, and read what they depend on.

        Raises:
            ValueError: with the way out.
        """

    @abstractmethod
    def observations(self) -> Sequence[Any]:
        """List the observation of each state: S of them."""

    @abstractmethod
    def metrics(self, probabilities: np.ndarray) -> dict[str, float]:
        """Compute the metrics to log from the policy's probability of each action, [S, num_actions]."""

    @abstractmethod
    def chart(self, probabilities: np.ndarray, title: str) -> Figure:
        """Draw the policy from its probability of each action, [S, num_actions]."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        self.check_env(data)
        if not isinstance(getattr(pl_module, "policy", None), CandidatePolicy):
            raise ConfigError(
                f"{type(self).__name__} asks for the probabilities of all actions, which only the candidate "
                "policy knows. Take the callback out of trainer.callbacks."
            )
        # With a history, or not in every rollout, later turns would have nothing to go on from.
        if self.every_n_rollouts == 1 and data.history == 0:
            data.prefetched_observations = self.observations()

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
        data = trainer.datamodule  # type: ignore[attr-defined]
        probabilities = action_probabilities(data, module, self.observations(), self.num_actions)
        module.log_dict(self.metrics(probabilities), rank_zero_only=True)
        if draws and trainer.loggers:
            picture = chart_array(self.chart(probabilities, f"Rollout {trainer.current_epoch + 1}"))
            log_picture(trainer, "strategy", picture)


def action_probabilities(
    data: RolloutDataModule, module: LLMLearner, observations: Sequence[Any], num_actions: int
) -> np.ndarray:
    """The policy's probability of each action for each observation, [S, num_actions]."""
    prompts = data.prompts(observations)
    with module.inference() as policy:
        assert isinstance(policy, CandidatePolicy)
        policy.prefetch(prompts)
        rows = policy.distributions(prompts).double().exp().numpy()
    probabilities = np.zeros((len(prompts), num_actions))
    for result, prompt, row in zip(probabilities, prompts, rows, strict=True):
        actions = [action_of(data.agent, candidate) for candidate in prompt.candidates]
        np.add.at(result, actions, row[: len(actions)])
    return probabilities
