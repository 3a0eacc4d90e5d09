"""Exact values of environments with transition tables, such as Gymnasium's toy texts, by dynamic programming.

S states, A actions. Values are those of an episode with so many steps left, as a time limit ends it:

    q_k(s, a) = r(s, a) + sum over s' of P(s' | s, a) v_(k-1)(s'),    v_0 = 0
"""

from typing import Any, NamedTuple

import numpy as np


class Tables(NamedTuple):
    """Transition, reward and start tables of an environment.

    Attributes:
        transitions: P(s' | s, a) and the episode goes on, [S, A, S].
        rewards: the mean reward of an action in a state, [S, A].
        start: the probability of each state after `reset`, [S].
    """

    transitions: np.ndarray
    rewards: np.ndarray
    start: np.ndarray


def tables(env: Any) -> Tables:
    """Build the tables of an environment.

    Args:
        env: has `P[state][action]`, a list of (probability, next state, reward, terminated), and
            `initial_state_distrib`.
    """
    states, actions = len(env.P), len(env.P[0])
    transitions = np.zeros((states, actions, states))
    rewards = np.zeros((states, actions))
    for state, actions_of in env.P.items():
        for action, outcomes in actions_of.items():
            for probability, next_state, reward, terminated in outcomes:
                rewards[state, action] += probability * reward
                transitions[state, action, next_state] += probability * (not terminated)
    return Tables(transitions, rewards, np.asarray(env.initial_state_distrib, dtype=float))


def policy_value(mdp: Tables, policy: np.ndarray, steps: int) -> float:
    """Mean return of an episode of at most `steps` steps under a policy.

    Args:
        mdp: the environment's tables.
        policy: the probability of each action, [S, A].
        steps: the time limit.
    """
    values = np.zeros(len(mdp.start))
    for _ in range(steps):
        values = (policy * (mdp.rewards + mdp.transitions @ values)).sum(axis=1)
    return float(mdp.start @ values)


def optimal_action_values(mdp: Tables, steps: int) -> np.ndarray:
    """Optimal q of each action with `steps` steps left, one or more, [S, A]."""
    values = np.zeros(len(mdp.start))
    for _ in range(steps):
        q = mdp.rewards + mdp.transitions @ values
        values = q.max(axis=1)
    return q


def optimal_value(mdp: Tables, steps: int) -> float:
    """Mean return of an episode of at most `steps` steps, played optimally with the steps left known."""
    return float(mdp.start @ optimal_action_values(mdp, steps).max(axis=1))


def reference_returns(env: Any, steps: int) -> dict[str, float]:
    """Mean returns of an episode of at most `steps` steps: of any action, of any that the environment's
    `action_mask` allows, if it has one, and of the best."""
    mdp = tables(env)
    policies = {"random": np.ones_like(mdp.rewards)}
    if hasattr(env, "action_mask"):
        policies["random, allowed actions"] = np.stack([env.action_mask(state) for state in env.P])
    returns = {
        name: policy_value(mdp, mask / mask.sum(axis=1, keepdims=True), steps)
        for name, mask in policies.items()
    }
    return {**returns, "optimal": optimal_value(mdp, steps)}
