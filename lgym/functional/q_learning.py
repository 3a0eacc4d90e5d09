"""Action values that a policy implies, and the targets that they learn."""

import torch
from torch import Tensor

from lgym.functional import inputs
from lgym.functional.kl import categorical_entropy, categorical_kl


def prior_action_values(logprobs: Tensor, values: Tensor, *, scale: float) -> Tensor:
    """Action values of which a policy is the Boltzmann distribution and a state value the mean.

    Q(s, c) = V(s) + β (log π(c | s) - Σ_c' π(c' | s) log π(c' | s)),  so that

    softmax over c of Q(s, c) / β = π(c | s)  and  Σ_c π(c | s) Q(s, c) = V(s)

    "Reinforcement Learning with Deep Energy-Based Policies", Haarnoja et al. 2017, arXiv:1702.08165, equation
    6, solved for Q, with the mean in place of the soft value.

    Args:
        logprobs: [..., C], normalized, -inf for what cannot be chosen.
        values: [...] of the states.
        scale: β, in rewards per nat, above 0.

    Returns:
        [..., C]; -inf where `logprobs` is.

    Raises:
        ValueError: if the shapes differ.
    """
    inputs.require_same_shape(values=values, logprobs_without_candidates=logprobs[..., 0])
    advantages = logprobs + categorical_entropy(logprobs)[..., None]
    return values[..., None] + scale * advantages


@torch.no_grad()
def double_q_targets(rewards: Tensor, discounts: Tensor, online_q: Tensor, target_q: Tensor) -> Tensor:
    """Targets of Q-learning whose best action is chosen by one network and valued by another.

    y = R + d Q_target(s', argmax_c Q_online(s', c))

    "Deep Reinforcement Learning with Double Q-learning", van Hasselt et al. 2016, arXiv:1509.06461, equation
    4. With `online_q` = `target_q` this is plain Q-learning.

    Args:
        rewards: [B] R, discounted sums over the turns up to s'.
        discounts: [B] d, γ to the power of these turns; 0 where the episode terminated, whatever s' is.
        online_q: [B, C] at s', -inf for what cannot be chosen.
        target_q: [B, C] likewise.

    Returns:
        [B], without gradient.

    Raises:
        ValueError: if the shapes differ.
    """
    inputs.require_same_shape(rewards=rewards, discounts=discounts, states=online_q[:, 0])
    inputs.require_same_shape(online_q=online_q, target_q=target_q)
    best = online_q.argmax(-1, keepdim=True)
    bootstrap = target_q.gather(1, best).squeeze(1)
    return rewards + discounts * bootstrap.masked_fill(discounts == 0, 0.0)


@torch.no_grad()
def graph_backup(
    prompt_index: Tensor,
    choices: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    next_prompt_index: Tensor,
    next_values: Tensor,
    *,
    max_sweeps: int = 2000,
    tolerance: float = 1e-6,
) -> Tensor:
    """Optimal action values of the graph that transitions are: value iteration over what was met.

    Q(s, c) = mean over the transitions from (s, c) of  R + d max_c' Q(s', c')

    over the choices c' that were made at s'; where none was, V(s') in place of the maximum.

    "Graph Backup: Data Efficient Backup Exploiting Markovian Transitions", Jiang et al. 2022,
    arXiv:2205.15824, to any depth. A state that never comes again is worth what followed it once.

    Args:
        prompt_index: [B] int64, s.
        choices: [B] int64, c.
        rewards: [B] R.
        discounts: [B] d; 0 where the episode terminated.
        next_prompt_index: [B] int64, s'; -1 where there is none.
        next_values: [B] V(s').
        max_sweeps: the most sweeps.
        tolerance: largest change in a sweep, as a share of the largest value, at which they end.

    Returns:
        [B] Q(s, c) of each transition, in the precision of `rewards`.

    Raises:
        ValueError: if the shapes differ.
    """
    inputs.require_same_shape(prompt_index=prompt_index, choices=choices, rewards=rewards)
    inputs.require_same_shape(rewards=rewards, discounts=discounts, next_values=next_values)
    inputs.require_same_shape(rewards=rewards, next_prompt_index=next_prompt_index)
    if not len(rewards):
        return rewards.clone()
    states = 1 + int(torch.maximum(prompt_index.max(), next_prompt_index.max()))
    pairs, pair = torch.stack([prompt_index, choices]).unique(dim=1, return_inverse=True)
    counts = pair.bincount().double()
    acted_on = torch.zeros(states, dtype=torch.bool, device=rewards.device)
    acted_on[pairs[0]] = True
    goes_on = (next_prompt_index >= 0) & acted_on[next_prompt_index]
    ends = rewards.double() + (discounts * next_values).double().masked_fill(goes_on | (discounts == 0), 0.0)
    paid = torch.zeros_like(counts).index_add(0, pair, ends) / counts
    edges, edge = torch.stack([pair, next_prompt_index])[:, goes_on].unique(dim=1, return_inverse=True)
    weights = torch.zeros(edges.shape[1], dtype=torch.float64, device=rewards.device)
    weights = weights.index_add(0, edge, discounts[goes_on].double()) / counts[edges[0]]
    q = paid
    for _ in range(max_sweeps):
        best = torch.full((states,), -torch.inf, dtype=torch.float64, device=rewards.device)
        best = best.scatter_reduce(0, pairs[0], q, "amax")
        before, q = q, paid.index_add(0, edges[0], weights * best[edges[1]])
        if (q - before).abs().max() <= tolerance * q.abs().max():
            break
    values: Tensor = q[pair]
    return values.to(rewards.dtype)


def conservative_penalty(q: Tensor, choices: Tensor) -> Tensor:
    """The amount by which the soft maximum of action values exceeds that of the logged action.

    log Σ_c exp Q(s, c) - Q(s, c_t)

    "Conservative Q-Learning for Offline Reinforcement Learning", Kumar et al. 2020, arXiv:2006.04779,
    equation 4, whose expectation over the log this is the sample of.

    Args:
        q: [B, C], -inf for what cannot be chosen.
        choices: [B] int64, the logged actions.

    Returns:
        [B], 0 or more.

    Raises:
        ValueError: if the shapes differ.
    """
    inputs.require_same_shape(choices=choices, states=q[:, 0])
    return q.logsumexp(-1) - q.gather(1, choices[:, None]).squeeze(1)


def mean_by_pair(q: Tensor, states: Tensor, choices: Tensor, values: Tensor) -> Tensor:
    """A table of given values of pairs of a state and a choice, -inf of all others.

    Args:
        q: [n, C], whose shape and precision the table has.
        states: [B] int64, rows.
        choices: [B] int64, columns.
        values: [B]; the mean is taken of those of one pair.

    Returns:
        [n, C].

    Raises:
        ValueError: if the shapes differ.
    """
    inputs.require_same_shape(states=states, choices=choices, values=values)
    zeros = torch.zeros_like(q)
    sums = zeros.index_put((states, choices), values.to(q.dtype), accumulate=True)
    counts = zeros.index_put((states, choices), torch.ones_like(values, dtype=q.dtype), accumulate=True)
    return (sums / counts).masked_fill(counts == 0, -torch.inf)


def distillation_loss(logprobs: Tensor, teacher: Tensor) -> Tensor:
    """The divergence of a policy from a teacher, between the actions that the teacher knows.

    Σ_c p(c) (log p(c) - log π(c | c is known)) over the c that are known

    "Policy Distillation", Rusu et al. 2015, arXiv:1511.06295, equation 3, where p is the softmax of action
    values at a low temperature.

    Args:
        logprobs: [..., C] log π, -inf for what cannot be chosen.
        teacher: [..., C] log p, normalized, -inf for what is not known; one action at least is.

    Returns:
        [...] in nats, 0 or more; 0 where one action is known.

    Raises:
        ValueError: if the shapes differ.
    """
    inputs.require_same_shape(logprobs=logprobs, teacher=teacher)
    unknown = teacher.isneginf()
    between_known = logprobs.masked_fill(unknown, -torch.inf).log_softmax(-1)
    return categorical_kl(teacher, between_known.masked_fill(unknown, -torch.inf))


def huber_loss(values: Tensor, targets: Tensor, *, delta: float) -> Tensor:
    """Half the squared error, but in proportion to errors beyond `delta`, per entry.

    e² / 2 where |e| <= δ, else δ (|e| - δ / 2)

    "Robust Estimation of a Location Parameter", Huber 1964, doi:10.1214/aoms/1177703732. With δ = inf this is
    `value_loss`.

    Args:
        values: [...].
        targets: [...].
        delta: δ, in the units of the values, above 0.

    Returns:
        [...].

    Raises:
        ValueError: if the shapes differ or delta is not above 0.
    """
    inputs.require_same_shape(values=values, targets=targets)
    if not delta > 0:
        raise ValueError(f"delta must be above 0, got {delta}")
    error = (values - targets).abs()
    inside = error.clamp(max=delta)
    return inside * (error - inside / 2)


def expectile_loss(errors: Tensor, *, expectile: float) -> Tensor:
    """Half the squared error, with different weights of errors above and below 0, per entry.

    |τ - 1(u < 0)| u² / 2,  whose mean is least where the value is the τ-expectile of what it predicts

    "Offline Reinforcement Learning with Implicit Q-Learning", Kostrikov et al. 2021, arXiv:2110.06169,
    equation 5, there without the half. With τ = 1/2 it is half of `value_loss`.

    Args:
        errors: [...] u, the target less the value.
        expectile: τ, above 0 and below 1.

    Returns:
        [...].

    Raises:
        ValueError: if expectile is outside (0, 1).
    """
    if not 0 < expectile < 1:
        raise ValueError(f"expectile must be above 0 and below 1, got {expectile}")
    weights = (expectile - (errors < 0).to(errors.dtype)).abs()
    return weights * errors.square() / 2


def expected_value(logprobs: Tensor, values: Tensor) -> Tensor:
    """The mean of values over a distribution.

    Σ_c π(c) x(c)

    Args:
        logprobs: [..., C], normalized, -inf for what cannot be chosen.
        values: [..., C] x, whatever there.

    Returns:
        [...].

    Raises:
        ValueError: if the shapes differ.
    """
    inputs.require_same_shape(logprobs=logprobs, values=values)
    return (logprobs.exp() * values.masked_fill(logprobs.isneginf(), 0.0)).sum(-1)
