"""Environments whose transitions are written down, as those of Gymnasium's toy texts are, solved by dynamic programming.

S states, A actions. Values are those of an episode with so many steps left, as a time limit ends it:

    q_k(s, a) = r(s, a) + sum over s' of P(s' | s, a) v_(k-1)(s'),    v_0 = 0
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Tables(NamedTuple):
    """What an environment does, in arrays."""

    transitions: np.ndarray
    """P(s' | s, a) and the episode goes on, [S, A, S]."""

    rewards: np.ndarray
    """The mean reward of an action in a state, [S, A]."""

    start: np.ndarray
    """The probability of each state after `reset`, [S]."""


def tables(env: Any) -> Tables:
    """From an environment's `P[state][action]`, a list of (probability, next state, reward, terminated), and its
    `initial_state_distrib`."""
    states, actions = len(env.P), len(env.P[0])
    transitions, rewards = np.zeros((states, actions, states)), np.zeros((states, actions))
    for state, outcomes_of in env.P.items():
        for action, outcomes in outcomes_of.items():
            for probability, following, reward, terminated in outcomes:
                rewards[state, action] += probability * reward
                transitions[state, action, following] += probability * (not terminated)
    return Tables(transitions, rewards, np.asarray(env.initial_state_distrib, dtype=float))


def policy_value(known: Tables, policy: np.ndarray, steps: int) -> float:
    """The mean return of an episode of at most `steps` steps, where `policy` has each action's probability, [S, A]."""
    values = np.zeros(len(known.start))
    for _ in range(steps):
        values = (policy * (known.rewards + known.transitions @ values)).sum(axis=1)
    return float(known.start @ values)


def optimal_action_values(known: Tables, steps: int) -> np.ndarray:
    """q of each action with `steps` steps left, one or more, when playing optimally, [S, A]."""
    values = np.zeros(len(known.start))
    for _ in range(steps):
        q = known.rewards + known.transitions @ values
        values = q.max(axis=1)
    return q


def optimal_value(known: Tables, steps: int) -> float:
    """The mean return of an episode of at most `steps` steps, played by who knows how many are left."""
    return float(known.start @ optimal_action_values(known, steps).max(axis=1))
