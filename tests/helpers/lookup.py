"""Algorithms that learn values of actions, against exact values: by a policy that looks its numbers up."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from lgym.envs import tabular
from lgym.modules import DQN, ReplayLearner
from lgym.rollout import Prompt
from lgym.transitions import TransitionBatch

GAMMA = 0.9


class Lookup(nn.Module):
    """A policy with a row of scores, a value and twin values of actions of its own for each state, in
    float64."""

    generates_text = False
    scores_candidates = True
    detach_value = False

    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        self.llm = nn.Module()
        self.llm.scores = nn.Parameter(torch.zeros(states, actions, dtype=torch.float64))
        self.llm.values = nn.Parameter(torch.zeros(states, dtype=torch.float64))
        self.llm.twins = nn.Parameter(torch.zeros(states, actions, 2, dtype=torch.float64))
        self.llm.value_head = SimpleNamespace(std=torch.tensor(1.0))

    def __call__(self, prompts):
        rows = [prompt.token_ids[0] for prompt in prompts]
        return self.llm.scores[rows].log_softmax(-1), self.llm.values[rows]

    def action_values(self, prompts):
        rows = [prompt.token_ids[0] for prompt in prompts]
        return *self(prompts), self.llm.twins[rows]


def lake(is_slippery: bool) -> tuple[TransitionBatch, np.ndarray]:
    """See `every_transition`, of Frozen Lake."""
    return every_transition(gymnasium.make("FrozenLake-v1", is_slippery=is_slippery).unwrapped)


def every_transition(env: Any) -> tuple[TransitionBatch, np.ndarray]:
    """Every outcome of every action in every state of an environment with tables, of equal weight as they are of
    equal probability; and the optimal values."""
    prompts = tuple(Prompt((s,), ((1,), (2,), (3,), (4,)), tuple("ldru"), str(s)) for s in env.P)
    rows = [
        (state, action, reward, -1 if terminated else following, 0.0 if terminated else GAMMA)
        for state, actions in env.P.items()
        for action, outcomes in actions.items()
        for _, following, reward, terminated in (outcomes if len(outcomes) > 1 else outcomes * 3)
    ]
    index, choices, rewards, following, discounts = zip(*rows, strict=True)
    batch = TransitionBatch(
        prompts,
        torch.tensor(index),
        torch.tensor(choices),
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(following),
        torch.tensor(discounts, dtype=torch.float64),
        torch.zeros(len(rows), dtype=torch.float64),
    )
    mdp = tabular.tables(env)
    q = np.zeros_like(mdp.rewards)
    for _ in range(1000):
        q = mdp.rewards + GAMMA * mdp.transitions @ q.max(axis=1)
    return batch, q


def fit(module: ReplayLearner, batch: TransitionBatch, sweeps: int, parts: Mapping[str, str]) -> None:
    """So many target networks, behind each of which the lookup's numbers are fitted until nothing changes.

    Args:
        parts: by term of the loss, or `loss/total`, the numbers that are fitted by it, in the order of fitting.
    """
    for _ in range(sweeps):
        module.target.follow(1.0)
        for term, names in parts.items():
            optimizer = torch.optim.LBFGS(
                [getattr(module.policy.llm, name) for name in names.split()],
                max_iter=300,
                tolerance_grad=1e-11,
                tolerance_change=1e-16,
                line_search_fn="strong_wolfe",
            )

            def closure(optimizer=optimizer, term=term):
                optimizer.zero_grad()
                terms, _ = module.objective(batch)
                loss = sum(terms.values()) if term == "loss/total" else terms[term]
                loss = 1e6 * loss.mean()  # the optimizer stops at small gradients
                loss.backward()
                return loss

            optimizer.step(closure)


def fitted(module: DQN, batch: TransitionBatch, sweeps: int) -> torch.Tensor:
    """The values of actions behind so many sweeps."""
    fit(module, batch, sweeps, {"loss/total": "scores values"})
    with torch.no_grad():
        return module.action_values(batch.prompts)[0]
