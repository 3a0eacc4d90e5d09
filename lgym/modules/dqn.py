"""Deep Q-learning between candidates."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from lgym.functional import (
    categorical_entropy,
    distillation_loss,
    double_q_targets,
    expected_value,
    huber_loss,
    mean_by_pair,
    prior_action_values,
)
from lgym.models.action_value_head import ActionHead
from lgym.modules.config_checks import require_counts, require_discounts, require_one_of, require_positive
from lgym.modules.replay_learner import TD_ERROR, ReplayLearner
from lgym.policies import CandidatePolicy, LLMPolicy
from lgym.policies.head_choice import HeadChoice
from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch
from lgym.types import ConfigError

ActionValues = Literal["prior", "head"]
Loss = Literal["huber", "distillation"]


class DQN(ReplayLearner):
    """Double DQN (van Hasselt et al. 2016, arXiv:1509.06461) with n-step returns and a replay buffer, whose
    action values are the policy's own log-probabilities.

    L = E[ huber(Q(s, c) - y) ],   y = R + γ^n Q_target(s', argmax_c' Q(s', c'))
    Q(s, c) = V(s) + β (log π(c | s) - Σ_c' π(c' | s) log π(c' | s))

    So nothing is added for actions: untrained, the best action is the model's own preference, and what is
    learned is a policy that `play`, `export` and PPO take (cf. ReVal, arXiv:2603.23355). It plays by
    Boltzmann exploration: π is the softmax of Q / β. A return of several turns ends before one that explores,
    which the best policy would not have taken (Watkins's Q(λ): Sutton & Barto 2018, section 12.10).

    Where a minibatch has several choices of a prompt, as of `lgym.data.GraphReplayBuffer`, it learns the
    policy from their difference, and the state's value beside (policy distillation, Rusu et al. 2015,
    arXiv:1511.06295, equation 3):

    L = E[ huber(V(s) - Σ_c p(c) y(c)) + KL(p || π(. | s)) ],   p = softmax over the choices of y / β
    """

    greedy_returns = True

    def __init__(
        self,
        beta: float | None = None,
        epsilon: float = 0.05,
        epsilon_rollouts: int = 8,
        double_q: bool = True,
        action_values: ActionValues = "prior",
        loss: Loss | None = None,
        inertia: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            beta: β, in standard deviations of returns per nat: at which the policy prefers a better action.
                Null is 0.05, or 0.003 with distillation.
            epsilon: share of turns in training that take any candidate, each as likely, once it has fallen
                there from 1.
            epsilon_rollouts: rollouts in which it falls.
            double_q: choose the best next action by the trained weights and value it by the target's; else do
                both by the target's.
            action_values: π is the likelihood of the candidates' words (prior), or of a head of its own on
                the hidden state at the end of the prompt (head): the dueling network of Wang et al. 2016
                (arXiv:1511.06581), with the mean over π in place of the plain one.
            loss: the distance of Q from its targets (huber), or that of π from their softmax (distillation);
                null is the second one with lgym.data.GraphReplayBuffer.
            inertia: α, how much of the target network's policy, by default that before the rollout, stays in
                that softmax, from 0 to 1: what is right in rollout after rollout adds up, and what chance
                made of values does not. (Munchausen RL's α: Vieillard et al. 2020, arXiv:2007.14430.)
            **kwargs: of `ReplayLearner`.
        """
        super().__init__(**kwargs)
        require_discounts(epsilon=epsilon, inertia=inertia)
        require_positive(beta=beta)
        require_counts(epsilon_rollouts=epsilon_rollouts)
        self.given_beta = beta
        self.epsilon = epsilon
        self.epsilon_rollouts = epsilon_rollouts
        self.double_q = double_q
        require_one_of("action_values", action_values, ActionValues)
        if loss is not None:
            require_one_of("loss", loss, Loss)
        self.given_loss = loss
        self.inertia = inertia
        self.has_action_head = action_values == "head"
        if self.has_action_head:
            if not isinstance(self.policy, CandidatePolicy):
                raise ConfigError(
                    "action_values: head chooses in place of lgym.policies.CandidatePolicy, and policy is "
                    f"{type(self.policy).__name__}: leave it out, or set action_values: prior."
                )
            self.policy.choice = HeadChoice(temperature=self.policy.choice.temperature)

    @property
    def distills(self) -> bool:
        """True if the policy is that of the targets, and not their distance small."""
        return self.graph_values if self.given_loss is None else self.given_loss == "distillation"

    @property
    def beta(self) -> float:
        """β, in standard deviations of returns per nat."""
        return self.given_beta or (0.003 if self.distills else 0.05)

    def setup(self, stage: str) -> None:
        super().setup(stage)
        is_balanced = getattr(self.data_setting("replay", None), "balanced", True)
        if stage == "fit" and self.distills and not (self.graph_values or is_balanced):
            raise ConfigError(
                "loss: distillation compares the choices of a prompt, and data.replay draws single "
                "transitions: take lgym.data.GraphReplayBuffer, set data.replay.balanced: true, or "
                "loss: huber."
            )

    def configure_model(self) -> None:
        super().configure_model()
        if self.has_action_head and self.policy.llm.action_head is None:
            self.policy.llm.action_head = ActionHead.beside(self.policy.llm.value_head)

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

    def action_values(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """[n, C] values of the candidates of n prompts in rewards, -inf where there is none; and the policy's
        [n] entropies in nats."""
        logprobs, values = self.policy(prompts)
        q = prior_action_values(logprobs, values, scale=self.beta * self.std)
        return q, categorical_entropy(logprobs)

    def objective(self, batch: TransitionBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        acted_on = batch.prompt_index.unique()
        q, entropies = self.at_prompts(batch, acted_on, self.action_values)
        targets = self.targets(batch, q.detach(), acted_on)
        values = q[batch.prompt_index, batch.choices]
        metrics = {
            "q/mean": values,
            TD_ERROR: (values - targets).abs() / self.std,
            "policy/entropy": entropies[batch.prompt_index],
        }
        return self.loss_terms(q / self.std, batch, targets / self.std), metrics

    @torch.no_grad()
    def targets(self, batch: TransitionBatch, q: Tensor, known: Tensor) -> Tensor:
        """[B] of double Q-learning.

        Args:
            batch: of U prompts.
            q: [U, C] values of candidates, -inf where they are not known.
            known: numbers of the prompts where they are.
        """
        next_index = batch.next_prompt_index.clamp(min=0)
        bootstraps = batch.next_prompt_index[batch.discounts > 0].unique()
        if not len(bootstraps):
            return batch.rewards
        with self.target.in_place():
            target_q, _ = self.at_prompts(batch, bootstraps, self.action_values)
        online_q = target_q
        if self.double_q:
            rest = bootstraps[~torch.isin(bootstraps, known)]
            online_q = torch.maximum(self.at_prompts(batch, rest, self.action_values)[0], q)
        return double_q_targets(batch.rewards, batch.discounts, online_q[next_index], target_q[next_index])

    def loss_terms(self, q: Tensor, batch: TransitionBatch, targets: Tensor) -> dict[str, Tensor]:
        """The parts of the losses by their metrics' names, [B] each.

        Args:
            q: [U, C] values of candidates in standard deviations of returns, -inf where there is none and of
                prompts that nothing was chosen at.
            batch: B transitions, of U prompts.
            targets: [B] of the values of what was chosen, likewise.
        """
        state = batch.prompt_index
        if not self.distills:
            return {"loss/q": huber_loss(q[state, batch.choices], targets, delta=self.huber_delta)}
        known = mean_by_pair(q, state, batch.choices, targets)[state]
        logprobs, preferences = (q[state] / self.beta).log_softmax(-1), known / self.beta
        if self.inertia:
            preferences = preferences + self.inertia * self.logprobs_before(batch)[state]
        teacher = preferences.log_softmax(-1)
        value, wanted = expected_value(logprobs, q[state]), expected_value(teacher, known)
        return {
            "loss/q": huber_loss(value, wanted, delta=self.huber_delta),
            "loss/distillation": distillation_loss(logprobs, teacher),
        }
