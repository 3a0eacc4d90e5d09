"""Discrete soft actor-critic between candidates."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lgym.functional import categorical_kl, expected_value, mean_by_pair, value_loss
from lgym.modules.config_checks import require_discounts, require_positive
from lgym.modules.twin_learner import TwinLearner
from lgym.transitions import TransitionBatch

TEMPERATURE_LR_SCALE = 5.0
"""Learning rate of log α, as a multiple of that of heads: α has to go from 1 to a thirtieth within some
hundred steps."""


class SAC(TwinLearner):
    """Soft actor-critic with discrete actions (Christodoulou 2019, arXiv:1910.07207), as Zhou et al.
    (2022, arXiv:2209.10081) make it stable: by the average of twin action values in place of the smaller one.
    Every mean over candidates is exact.

    y = R + γ^n Σ_c π(c | s') Q_target(s', c)
    L_Q = E[ huber(Q_i(s, c_t) - y) ]
    L_π = E[ KL(q(· | s) || π(· | s)) ],   q(c | s) ∝ π_target(c | s)^ι exp(Q(s, c) / α)
    L_α = E[ log α (H(π(· | s)) - κ log n(s)) ]

    with n(s) the candidates of a state, so that α grows while the entropy is below κ of the most that it can
    be, and falls above. Q and α are in standard deviations of returns. L_π is the forward KL divergence (Chan
    et al. 2022, arXiv:2107.08285): that of the papers, α KL(π || softmax), has next to no gradient where α is
    small, or where π all but leaves out what Q has come to prefer. The value head learns Σ_c π Q, for
    reports.

    The inertia ι is 0 in soft actor-critic. With 1 the policy goes on from where it is (maximum a posteriori
    policy optimization: Abdolmaleki et al. 2018, arXiv:1806.06920, the E-step, with α given), and stays what
    demonstrations made it until action values speak for something else; no entropy is held then.
    """

    def __init__(
        self,
        target_entropy: float = 0.1,
        temperature: float = 1.0,
        inertia: float | None = None,
        soft_critic: bool = False,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            target_entropy: κ, the share of the largest entropy that the policy is held at, from 0 to 1.
            temperature: α at the start, above 0. A small one lets the policy follow action values that have
                met no reward yet, and explore no longer.
            inertia: ι, how much of the target network's policy, by default that before the rollout, stays in
                what the policy learns, from 0 to 1; null is 0, or 1 behind demonstrations (`sft.rollouts`).
                With 1 the temperature stays as it is given.
            soft_critic: add α H(π) at the state that bootstraps to the targets of action values.
            **kwargs: of `ReplayLearner`.
        """
        super().__init__(**kwargs)
        require_discounts(target_entropy=target_entropy, inertia=inertia)
        require_positive(temperature=temperature)
        self.target_entropy = target_entropy
        self.soft_critic = soft_critic
        self.given_inertia = inertia
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature), dtype=torch.float32))

    @property
    def inertia(self) -> float:
        """ι, how much of the target network's policy stays."""
        if self.given_inertia is None:
            return float(self.sft_rollouts > 0)
        return self.given_inertia

    def parameter_groups(self) -> list[dict[str, Any]]:
        *body, heads = super().parameter_groups()
        return [*body, heads, {"params": [self.log_temperature], "lr": TEMPERATURE_LR_SCALE * heads["lr"]}]

    def objective(self, batch: TransitionBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        acted_on, next_index = batch.prompt_index.unique(), batch.next_prompt_index.clamp(min=0)
        bootstraps = next_index.unique()
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            next_logprobs, _, _, _, next_entropies = self.at_prompts(batch, bootstraps, self.prompts_values)
            with self.target.in_place():
                _, _, one, other, _ = self.at_prompts(batch, bootstraps, self.prompts_values)
            next_values = expected_value(next_logprobs, (one + other) / 2)
            if self.soft_critic:
                next_values = next_values + temperature * self.std * next_entropies
            following = next_values[next_index].masked_fill(batch.discounts == 0, 0.0)
            targets = batch.rewards + batch.discounts * following
        logprobs, values, *twins, entropies = self.at_prompts(batch, acted_on, self.prompts_values)
        critic, metrics = self.critic_loss(batch, twins, targets)
        q = (twins[0] + twins[1]).detach() / 2
        state = batch.prompt_index
        if self.graph_values:
            known = mean_by_pair(q, state, batch.choices, targets)
            q = torch.where(known.isneginf(), q, known)
        preferences = q[state] / (temperature * self.std)
        if self.inertia:
            preferences = preferences + self.inertia * self.logprobs_before(batch)[state]
        means = expected_value(logprobs.detach(), q)
        gap = entropies.detach() - self.target_entropy * self.largest_entropies(batch)
        terms = {
            "loss/q": critic,
            "loss/policy": categorical_kl(preferences.log_softmax(-1), logprobs[state]),
            "loss/value": value_loss(values[state] / self.std, means[state] / self.std),
        }
        if self.inertia < 1:
            terms["loss/temperature"] = self.log_temperature * gap[state]
        return terms, metrics | {"policy/entropy": entropies[state], "policy/temperature": temperature}

    def largest_entropies(self, batch: TransitionBatch) -> Tensor:
        """[U] log n(s), nats."""
        counts = [len(prompt.candidates) for prompt in batch.prompts]
        return torch.tensor(counts, dtype=batch.rewards.dtype, device=batch.rewards.device).log()
