"""Deep Q-learning between candidates."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.nn.functional import pad

from lgym import distributed
from lgym.functional import categorical_entropy, double_q_targets, huber_loss, prior_action_values
from lgym.modules.base import LLMLearner
from lgym.modules.config_checks import require_counts, require_discounts, require_positive
from lgym.modules.configs import CriticConfig
from lgym.modules.discounts import discount
from lgym.modules.metrics import rollout_metrics
from lgym.modules.ppo import ppo_optimizer, ppo_schedule
from lgym.modules.response_batch import response_batch, rollout_turns
from lgym.modules.target_network import TargetNetwork
from lgym.modules.transitions import rollout_transitions
from lgym.policies import CandidatePolicy, LLMPolicy
from lgym.rollout import Rollout
from lgym.transitions import TransitionBatch
from lgym.types import ConfigError


class DQN(LLMLearner):
    """Double DQN (van Hasselt et al. 2016, arXiv:1509.06461) with n-step returns and a replay buffer, whose
    action values are the policy's own log-probabilities.

    L = E[ huber(Q(s, c) - y) ],   y = R + γ^n Q_target(s', argmax_c' Q(s', c'))
    Q(s, c) = V(s) + β (log π(c | s) - Σ_c' π(c' | s) log π(c' | s))

    So nothing is added for actions: untrained, the best action is the model's own preference, and what is
    learned is a policy that `play`, `export` and PPO take (cf. ReVal, arXiv:2603.23355). It plays by
    Boltzmann exploration: π is the softmax of Q / β.
    """

    has_critic = True
    uses_replay = True

    def __init__(
        self,
        policy: CandidatePolicy | LLMPolicy | None = None,
        gamma: float | None = None,
        n_step: int = 3,
        beta: float = 0.05,
        epsilon: float = 0.05,
        epsilon_rollouts: int = 8,
        double_q: bool = True,
        polyak: float | None = None,
        huber_delta: float = 1.0,
        value_lr_scale: float = 5.0,
        detach_value: bool = False,
        optimizer: OptimizerCallable = ppo_optimizer,
        lr_scheduler: LRSchedulerCallable | None = ppo_schedule,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            policy: how it acts; it has to choose between candidates, and does so by default.
            gamma: discount per turn; null takes 0.99, or what random play decides (`lgym.data.discounts`).
            n_step: turns of a return before it bootstraps.
            beta: β, in standard deviations of returns per nat: at which the policy prefers a better action.
            epsilon: share of turns in training that take any candidate, each as likely, once it has fallen
                there from 1.
            epsilon_rollouts: rollouts in which it falls.
            double_q: choose the best next action by the trained weights and value it by the target's; else do
                both by the target's.
            polyak: share of the way that the target network goes to the trained weights with each step; null
                copies them before each rollout is learned from.
            huber_delta: error, in standard deviations of returns, from which the loss grows in proportion.
            value_lr_scale: the value head's learning rate, as a multiple of the optimizer's.
            detach_value: keep the gradient of V out of the language model, which then learns from what tells
                actions apart alone.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 8e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; by
                default two rollouts of warm-up and a fall to a tenth over the run, `trainer.max_epochs`. Null
                is none.
            **kwargs: of every algorithm: llm, sft.
        """
        super().__init__(
            policy=policy or CandidatePolicy(), optimizer=optimizer, lr_scheduler=lr_scheduler, **kwargs
        )
        if not self.policy.scores_candidates or self.policy.generates_text:
            raise ConfigError(
                "DQN learns values of candidates, and this policy writes text: take "
                "lgym.policies.CandidatePolicy."
            )
        require_discounts(gamma=gamma, epsilon=epsilon, polyak=polyak)
        require_positive(beta=beta, huber_delta=huber_delta)
        require_counts(epsilon_rollouts=epsilon_rollouts)
        if n_step < 1:
            raise ConfigError(f"n_step is {n_step}; it must be 1 turn or more.")
        self.given_gamma = gamma
        self.open_discounts = {"gamma"} if gamma is None else frozenset()
        self.critic = CriticConfig(value_lr_scale=value_lr_scale, detach_value=detach_value)
        self.policy.detach_value = detach_value
        self.n_step = n_step
        self.beta = beta
        self.epsilon = epsilon
        self.epsilon_rollouts = epsilon_rollouts
        self.double_q = double_q
        self.polyak = polyak
        self.huber_delta = huber_delta
        self._target: TargetNetwork | None = None
        self._restored_target: dict[str, Tensor] | None = None

    @property
    def gamma(self) -> float:
        """Discount per turn."""
        return discount(self, "gamma", self.given_gamma)

    @property
    def target(self) -> TargetNetwork:
        """The target network, made of the weights as they are when it is first asked for."""
        if self._target is None:
            self._target = TargetNetwork(self.policy.llm)
            if self._restored_target is not None:
                self._target.load_state_dict(self._restored_target)
        return self._target

    @contextmanager
    def behavior(self, rollouts: int) -> Iterator[LLMPolicy]:
        """See `LLMLearner`; some turns take any candidate."""
        with self.inference() as policy:
            progress = min(1.0, rollouts / max(1, self.epsilon_rollouts))
            policy.epsilon = 1.0 + progress * (self.epsilon - 1.0)
            try:
                yield policy
            finally:
                policy.epsilon = 0.0

    def prepare(self, rollout: Rollout) -> tuple[TransitionBatch, dict[str, float]]:
        """The rollout's transitions. Values are normalized anew by their targets, and the target network
        copied."""
        transitions = rollout_transitions(rollout, gamma=self.gamma, n=self.n_step)
        batch, order = response_batch(rollout)
        metrics = rollout_metrics(rollout_turns(rollout, batch, order, None))
        self.update_features(rollout.prompts)
        bootstraps = rollout.prompt_values[transitions.next_prompt_index]
        returns = transitions.rewards + transitions.discounts * bootstraps
        self._normalize(distributed.all_gather_cat(returns))
        return transitions, metrics

    def _normalize(self, returns: Tensor) -> None:
        value_head = self.value_head
        before = float(value_head.mean), float(value_head.std)
        value_head.update_statistics(returns)
        if self.polyak is None:
            self.target.follow(1.0)
        elif int(value_head.updates) > 1:
            with self.target.in_place():
                value_head.preserve_values(*before)

    def action_values(self, batch: TransitionBatch, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the candidates of some of a batch's prompts.

        Args:
            batch: of U prompts.
            numbers: [n] int64, those to compute.

        Returns:
            [U, C] values in rewards, -inf where there is no candidate and of other prompts; and [U] entropies
            of the policy in nats, likewise 0.
        """
        prompts = batch.prompts
        width = max(len(prompt.candidates) for prompt in prompts)
        table = batch.rewards.new_full((len(prompts), width), -torch.inf)
        entropies = batch.rewards.new_zeros(len(prompts))
        if not len(numbers):
            return table, entropies
        logprobs, values = self.policy([prompts[number] for number in numbers.tolist()])
        scale = self.beta * float(self.value_head.std)
        q = prior_action_values(logprobs.to(table.dtype), values.to(table.dtype), scale=scale)
        q = pad(q, (0, width - q.shape[1]), value=-torch.inf)
        entropy = categorical_entropy(logprobs.to(table.dtype))
        return table.index_copy(0, numbers, q), entropies.index_copy(0, numbers, entropy)

    def loss(self, batch: TransitionBatch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """See `LLMLearner`: the mean over transitions, of values in standard deviations of returns."""
        if batch.supervised is not None and self.current_epoch < self.sft.rollouts:
            supervised = self.sft_loss(batch.supervised)
            return supervised, {"loss/sft": supervised.detach()}
        acted_on, next_index = batch.prompt_index.unique(), batch.next_prompt_index.clamp(min=0)
        bootstraps = next_index.unique()
        with torch.no_grad(), self.target.in_place():
            target_q, _ = self.action_values(batch, bootstraps)
        q, entropies = self.action_values(batch, acted_on)
        online_q = target_q
        if self.double_q:  # of prompts that were acted on they are known
            with torch.no_grad():
                rest, _ = self.action_values(batch, bootstraps[~torch.isin(bootstraps, acted_on)])
            online_q = torch.maximum(rest, q.detach())
        targets = double_q_targets(batch.rewards, batch.discounts, online_q[next_index], target_q[next_index])
        values = q[batch.prompt_index, batch.choices]
        std = float(self.value_head.std)
        terms = self.loss_terms(q[batch.prompt_index] / std, batch.choices, targets / std)
        total = torch.stack(list(terms.values())).sum()
        if batch.supervised is not None and self.sft.coef > 0:
            total = total + self.sft.coef * self.sft_loss(batch.supervised)
        metrics = {
            **terms,
            "loss/total": total,
            "q/mean": values.mean(),
            "q/td_error": (values - targets).abs().mean() / std,
            "policy/entropy": entropies[batch.prompt_index].mean(),
        }
        return total, {name: value.detach() for name, value in metrics.items()}

    def loss_terms(self, q: Tensor, choices: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The parts of the loss by their metrics' names.

        Args:
            q: [B, C] values of candidates in standard deviations of returns, -inf where there is none.
            choices: [B] the chosen ones.
            targets: [B] of their values, likewise.
        """
        values = q.gather(1, choices[:, None]).squeeze(1)
        return {"loss/q": huber_loss(values, targets, delta=self.huber_delta).mean()}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.polyak is not None:
            self.target.follow(self.polyak)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["target"] = self.target.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._restored_target = checkpoint.get("target")  # another algorithm has none
