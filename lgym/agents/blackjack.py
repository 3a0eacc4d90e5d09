"""Agents for Blackjack."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.envs import blackjack

# The words for 0 to 31, the most that a hand goes over with: most tokenizers have one token for each below
# twenty-one, and one or more for every digit
NUMBERS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    *(f"twenty-{unit}" for unit in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")),
    "thirty",
    "thirty-one",
)


class BlackjackAgent(TextAgent):
    """Gymnasium's `Blackjack-v1`: hit or stay, on 280 different hands, in the words of the game.

    *hard sixteen against ten* is a total of 16 without a usable ace while the dealer shows a 10. The
    environment's number 0, which Gymnasium calls stick, is 'stay' here: the commoner word.
    """

    system_prompt = (
        "You play Blackjack against a dealer. Get closer to 21 than the dealer without going over. "
        "The dealer draws up to 17. In a soft hand an ace counts 11. Answer hit to draw a card, or stay to "
        "stop."
    )
    actions = ("stay", "hit")
    _pays_naturals = False  # 1.5, which is not solved
    _sab = True

    def bind(self, env: gymnasium.Env) -> None:
        """Read the rules for naturals, as `reference_returns` needs them."""
        self._sab = bool(getattr(env.unwrapped, "sab", False))
        self._pays_naturals = bool(getattr(env.unwrapped, "natural", False)) and not self._sab

    def format_observation(self, observation: blackjack.State) -> str:
        player_sum, dealer_card, usable_ace = (int(part) for part in observation)
        dealer = "ace" if dealer_card == 1 else NUMBERS[dealer_card]
        return f"Your hand: {'soft' if usable_ace else 'hard'} {NUMBERS[player_sum]} against {dealer}"

    def reference_returns(self) -> dict[str, float]:
        """Exact expected returns by the environment's rules; none where a natural pays 1.5."""
        if self._pays_naturals:
            return {}
        value = partial(blackjack.policy_value, sab=self._sab)
        below_17 = np.array([player_sum < 17 for player_sum, _, _ in blackjack.states()], dtype=float)
        return {
            "random": value(np.full_like(below_17, 0.5)),
            "always stay": value(np.zeros_like(below_17)),
            "hit below 17": value(below_17),
            "optimal": value(blackjack.optimal_policy()),
        }


class BlackjackJsonAgent(BlackjackAgent):
    """The same game with JSON answers, for text-generating policies; the candidates are JSON too.

    A response that cannot be parsed ends the hand as lost.
    """

    system_prompt = (
        "You play Blackjack against a dealer. Get closer to 21 than the dealer without going over. "
        "The dealer draws up to 17. In a soft hand an ace counts 11. "
        'Answer with one line of JSON: {"action": "hit"} or {"action": "stay"}.'
    )
    fallback = "end_episode"

    def candidates(self, observation: blackjack.State, info: Mapping[str, Any]) -> Sequence[str]:
        return [f'{{"action": "{action}"}}' for action in self.actions]
