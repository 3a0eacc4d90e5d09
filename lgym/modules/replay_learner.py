"""The base of algorithms that learn values of actions, from transitions of this and of earlier rollouts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from lgym import distributed
from lgym.modules.base import LLMLearner
from lgym.modules.config_checks import require_discounts, require_positive
from lgym.modules.configs import CriticConfig
from lgym.modules.metrics import rollout_metrics
from lgym.modules.response_batch import response_batch, rollout_turns
from lgym.modules.target_network import TargetNetwork
from lgym.modules.transitions import rollout_transitions
from lgym.policies import CandidatePolicy, LLMPolicy
from lgym.rollout import Prompt, Rollout
from lgym.transitions import TransitionBatch
from lgym.types import ConfigError

TD_ERROR = "q/td_error"
"""The metric of the distance of values of actions from their targets."""


class ReplayLearner(LLMLearner, ABC):
    """Values of candidates under training, with a target network and n-step returns. A subclass says what is
    learned from a minibatch of transitions (`objective`)."""

    has_critic = True
    uses_replay = True

    greedy_returns = False
    """True if action values are of the likeliest choices, so that a return of several turns ends before
    another one."""

    def __init__(
        self,
        policy: CandidatePolicy | LLMPolicy | None = None,
        gamma: float | None = None,
        n_step: int | None = None,
        polyak: float | None = None,
        huber_delta: float = 1.0,
        value_lr_scale: float = 5.0,
        detach_value: bool = False,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            policy: how it acts; it has to choose between candidates, and does so by default.
            gamma: discount per turn; null takes 0.99, or what random play decides (`lgym.data.discounts`).
            n_step: turns of a return before it bootstraps; null is 3, or 1 where the replay buffer carries
                values on (lgym.data.GraphReplayBuffer).
            polyak: share of the way that the target network goes to the trained weights with each step; null
                copies them before each rollout is learned from.
            huber_delta: error, in standard deviations of returns, from which the loss grows in proportion.
            value_lr_scale: the learning rate of heads, as a multiple of the optimizer's.
            detach_value: keep the gradient of heads out of the language model.
            **kwargs: of every algorithm: llm, optimizer, lr_scheduler, sft.
        """
        super().__init__(policy=policy, **kwargs)
        if not self.policy.scores_candidates or self.policy.generates_text:
            raise ConfigError(
                f"{type(self).__name__} learns values of candidates, and this policy writes text: take "
                "lgym.policies.CandidatePolicy."
            )
        require_discounts(gamma=gamma, polyak=polyak)
        require_positive(huber_delta=huber_delta)
        if n_step is not None and n_step < 1:
            raise ConfigError(f"n_step is {n_step}; it must be 1 turn or more.")
        self.given_gamma = gamma
        self.critic = CriticConfig(value_lr_scale=value_lr_scale, detach_value=detach_value)
        self.policy.detach_value = detach_value
        self.given_n_step = n_step
        self.polyak = polyak
        self.huber_delta = huber_delta
        self._target: TargetNetwork | None = None
        self._restored_target: dict[str, Tensor] | None = None
        self._steps_followed = 0  # by the target network, in the rollout at hand

    @abstractmethod
    def objective(self, batch: TransitionBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parts of the losses of B transitions by their metrics' names, [B] each, whose sum's mean is
        minimized; and further metrics, numbers or [B], among these `TD_ERROR`, in standard deviations of
        returns."""

    @property
    def open_settings(self) -> Set[str]:
        return {"replay", "gamma"} if self.given_gamma is None else {"replay"}

    @property
    def gamma(self) -> float:
        """Discount per turn."""
        return self.discount("gamma", self.given_gamma)

    @property
    def graph_values(self) -> bool:
        """True if the replay buffer gives values of choices that are carried on through all transitions."""
        return bool(getattr(self.data_setting("replay", None), "backs_up", False))

    @property
    def n_step(self) -> int:
        """Turns of a return before it bootstraps: 1 where a log's choices, of unknown probability, would
        count as the policy's own."""
        one = self.graph_values or bool(self.data_setting("logged_episodes", None))
        return self.given_n_step or (1 if one else 3)

    @property
    def target(self) -> TargetNetwork:
        """The target network, made of the weights as they are when it is first asked for."""
        if self._target is None:
            self._target = TargetNetwork(self.policy.llm)
            if self._restored_target is not None:
                self._target.load_state_dict(self._restored_target)
        return self._target

    def prepare(self, rollout: Rollout) -> tuple[TransitionBatch, dict[str, float]]:
        """The rollout's transitions."""
        transitions = rollout_transitions(
            rollout, gamma=self.gamma, n=self.n_step, greedy=self.greedy_returns
        )
        batch, order = response_batch(rollout)
        metrics = rollout_metrics(rollout_turns(rollout, batch, order, None))
        self.update_features(rollout.prompts)
        return transitions, metrics

    def _normalize(self, returns: Tensor) -> None:
        heads = self.policy.llm.heads
        before = [(float(head.mean), float(head.std)) for head in heads]
        learned = self.value_head.has_learned
        for head in heads:
            head.update_statistics(returns)
        if self.polyak is None:
            self.target.follow(1.0)
        elif learned:
            with self.target.in_place():
                for head, old in zip(heads, before, strict=True):
                    head.preserve_values(*old)

    @property
    def std(self) -> float:
        """Standard deviation of returns."""
        return float(self.value_head.std)

    def at_prompts(
        self, batch: TransitionBatch, numbers: Tensor, compute: Callable[[list[Prompt]], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Tables of what is computed of some of a batch's prompts, in the precision of its rewards.

        Args:
            batch: of U prompts.
            numbers: [n] int64, those to compute; of none the first is.
            compute: gives [n] tensors, or [n, C] of the candidates of n prompts, padded to the longest list.

        Returns:
            [U] tensors, 0 of the other prompts; or [U, C], -inf of them and where there is no candidate.
        """
        numbers = numbers if len(numbers) else numbers.new_zeros(1)
        width = max(len(prompt.candidates) for prompt in batch.prompts)
        tables = []
        for part in compute([batch.prompts[number] for number in numbers.tolist()]):
            shape, fill = ((), 0.0) if part.ndim == 1 else ((width,), -torch.inf)
            table = batch.rewards.new_full((len(batch.prompts), *shape), fill)
            if part.ndim > 1:
                part = pad(part, (0, width - part.shape[1]), value=fill)
            tables.append(table.index_copy(0, numbers, part.to(table.dtype)))
        return tuple(tables)

    @torch.no_grad()
    def logprobs_before(self, batch: TransitionBatch) -> Tensor:
        """[U, C] of the target network's policy, -inf of prompts that nothing was chosen at."""
        with self.target.in_place():
            (logprobs,) = self.at_prompts(batch, batch.prompt_index.unique(), lambda p: self.policy(p)[:1])
        return logprobs

    def loss(self, batch: TransitionBatch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """See `LLMLearner`: the mean over transitions, of values in standard deviations of returns. With the
        first minibatch of a rollout values are normalized anew by what they are to be, and the target network
        is copied."""
        if batch.metrics is not None:
            returns = batch.rewards + batch.discounts * batch.next_values
            self._normalize(distributed.all_gather_cat(returns))
        if self.current_epoch < self.sft_rollouts:
            return self.sft_objective(batch.supervised)
        parts, metrics = self.objective(batch)
        if batch.take_errors is not None:
            batch.take_errors(metrics[TD_ERROR].detach())
        terms = {
            name: (part if batch.weights is None else batch.weights * part).mean()
            for name, part in parts.items()
        }
        total = torch.stack(list(terms.values())).sum()
        if batch.supervised is not None and self.sft.coef > 0:
            total = total + self.sft.coef * self.sft_loss(batch.supervised)
        metrics = {**terms, **metrics, "loss/total": total}
        return total, {name: value.detach().mean() for name, value in metrics.items()}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        followed = 0 if batch_idx == 0 else self._steps_followed  # counted by rollout, as the steps are
        if self.polyak is not None and self.steps_taken > followed:
            self.target.follow(self.polyak)
        self._steps_followed = self.steps_taken

    def on_weights_put_back(self) -> None:
        self._target = self._restored_target = None  # it followed what was learned since

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["target"] = self.target.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._restored_target = checkpoint.get("target")  # another algorithm has none
