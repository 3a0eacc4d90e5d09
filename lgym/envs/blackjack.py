"""Gymnasium's `Blackjack-v1`, solved exactly.

Cards come from an infinite deck in which 4 of 13 cards count 10. The dealer draws until the hand is 17 or
more, soft hands included; the nearer to 21 wins 1, a tie is 0 and a player who goes over 21 loses 1. With
`sab`, as `Blackjack-v1` is registered, this is Example 5.1 of Sutton & Barto, "Reinforcement Learning: An
Introduction" (2018): 21 in the first two cards, a natural, wins against any other 21. With `sab=False` it
ties. It is best to stay on a natural either way, so optimal play is the same. `natural=True`, which pays 1.5
for one, is not solved here.

Arrays of [280] follow `states()`. Inside, they are tables [28, 10]: a row is a hand (`_HANDS`), a column the
dealer's card from 1 (ace) to 10. A hit only ever leads from a hand to another that no later hit leads back
from, so that as many sweeps as there are hands solve every recursion here exactly.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

# An observation: the player's total, the dealer's card (1 = ace), whether the player's ace counts 11 (0 or 1)
State: TypeAlias = tuple[int, int, int]

STAY, HIT = 0, 1

_HANDS = [(total, 0) for total in range(4, 22)] + [(total, 1) for total in range(12, 22)]
_ROW = {hand: row for row, hand in enumerate(_HANDS)}
_BUST = len(_HANDS)  # the row after the last hand
_CARD_PROBABILITY = np.array([1] * 9 + [4]) / 13
_SCORES = np.array([total for total, _ in _HANDS] + [0])  # a bust scores 0


def states() -> list[State]:
    """The 280 observations: hard totals 4 to 21, then soft totals 12 to 21, each against dealer cards 1 to
    10."""
    return [(total, dealer_card, soft) for total, soft in _HANDS for dealer_card in range(1, 11)]


def initial_distribution() -> np.ndarray:
    """The probability of each state after `reset`, [280]."""
    return np.outer(_CARD_PROBABILITY @ _two_cards()[:, :_BUST], _CARD_PROBABILITY).ravel()


def policy_value(hit_probability: Mapping[State, float] | ArrayLike, *, sab: bool = False) -> float:
    """The expected return of one hand when hitting with the given probability in each state, by the rules of
    `sab`."""
    hit = _table(hit_probability).ravel()
    q_stay, q_hit = action_values(hit_probability).T
    first_stay = q_stay + sab * _natural_gains().ravel()
    return float(initial_distribution() @ ((1 - hit) * first_stay + hit * q_hit))


def action_values(hit_probability: Mapping[State, float] | ArrayLike) -> np.ndarray:
    """Action values q(s, stay) and q(s, hit) of a policy, [280, 2], where a natural ties with any 21.

    q(s, stay) = E[sign(player - dealer)];  q(s, hit) = sum over s' of P(s' | s) v(s') - P(bust | s).
    """
    hit = _table(hit_probability)
    return _action_values(lambda q_stay, q_hit: (1 - hit) * q_stay + hit * q_hit)


def optimal_action_values() -> np.ndarray:
    """Optimal action values of stay and hit, [280, 2]. No two are equal: the closest are 0.0025 apart."""
    return _action_values(np.maximum)


def optimal_policy() -> np.ndarray:
    """The better action of each state, 0 = stay and 1 = hit, [280]."""
    return optimal_action_values().argmax(axis=1)


def is_optimal(greedy_actions: ArrayLike) -> np.ndarray:
    """Mask of the states in which the action is the better one, [280] of bool."""
    actions = _table(greedy_actions).ravel()
    if not np.isin(actions, (STAY, HIT)).all():
        raise ValueError(
            "greedy actions are 0 (stay) or 1 (hit); for probabilities, pass `probabilities > 0.5`"
        )
    return actions == optimal_policy()


def agreement(greedy_actions: ArrayLike) -> float:
    """The fraction of the 280 states in which the action is the better one; every state counts the same."""
    return float(is_optimal(greedy_actions).mean())


def _action_values(state_value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Action values of stay and hit, [280, 2], where `state_value(q_stay, q_hit)` is the value of a state."""
    q_stay, transitions = _stay_values(), _hit_transitions()
    q_hit = np.zeros_like(q_stay)
    for _ in _HANDS:
        q_hit = transitions[:, :_BUST] @ state_value(q_stay, q_hit) - transitions[:, _BUST:]
    return np.stack([q_stay.ravel(), q_hit.ravel()], axis=1)


def _table(per_state: Mapping[State, float] | ArrayLike) -> np.ndarray:
    """Probabilities, or actions, as a table [28, 10]. Raises `ValueError` unless each state has one in [0,
    1]."""
    if isinstance(per_state, Mapping):
        missing = [state for state in states() if state not in per_state]
        if missing:
            raise ValueError(f"{len(missing)} of the 280 states are missing, the first of them {missing[0]}")
        per_state = [per_state[state] for state in states()]
    table = np.asarray(per_state, dtype=float)
    if table.shape != (280,):
        raise ValueError(f"expected one number for each of the 280 states, shape (280,), not {table.shape}")
    if not ((table >= -1e-6) & (table <= 1 + 1e-6)).all():  # a float32 softmax may round past 1
        raise ValueError(f"expected numbers from 0 to 1, not from {table.min()} to {table.max()}")
    return table.clip(0, 1).reshape(len(_HANDS), 10)


def _draw(total: int, soft: int, card: int) -> int:
    """The row that a card leads to: an ace counts 11 wherever that does not go over 21."""
    hard = total - 10 * soft + card
    if (soft or card == 1) and hard + 10 <= 21:
        return _ROW[hard + 10, 1]
    return _ROW[hard, 0] if hard <= 21 else _BUST


def _after_draw(total: int, soft: int) -> np.ndarray:
    """P(row after one more card), [29]."""
    return np.bincount(
        [_draw(total, soft, card) for card in range(1, 11)], weights=_CARD_PROBABILITY, minlength=_BUST + 1
    )


@cache
def _hit_transitions() -> np.ndarray:
    """P(row after a hit | hand), [28, 29]; the last column is a bust."""
    return np.stack([_after_draw(total, soft) for total, soft in _HANDS])


@cache
def _two_cards() -> np.ndarray:
    """P(row | its first card), [10, 29]; the last column, a bust, is 0."""
    return np.stack([_after_draw(11, 1)] + [_after_draw(first, 0) for first in range(2, 11)])


@cache
def _stay_values() -> np.ndarray:
    """E[sign(player's score - dealer's score)] when the player stays, [28, 10]."""
    return np.sign(_SCORES[:_BUST, None] - _SCORES) @ _dealer_ends().T


def _natural_gains() -> np.ndarray:
    """P(the dealer comes to 21 by more than two cards) at a natural, by which it gains with `sab`, and 0 at
    any other hand, [28, 10]."""
    gains = np.zeros((_BUST, 10))
    natural = _ROW[21, 1]
    gains[natural] = _dealer_ends()[:, _SCORES == 21].sum(axis=1) - _two_cards()[:, natural]
    return gains


@cache
def _dealer_ends() -> np.ndarray:
    """P(row that the dealer ends in | its first card), [10, 29]."""
    dealer_step = np.eye(len(_HANDS) + 1)
    draws = _SCORES[:_BUST] < 17
    dealer_step[:_BUST][draws] = _hit_transitions()[draws]
    return _two_cards() @ np.linalg.matrix_power(dealer_step, len(_HANDS))
