"""Agents for Blackjack."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lgym.agents.base import TextAgent
from lgym.envs import blackjack

# The words for 0 to 21: most tokenizers have one token for each, and one or more for every digit
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
    "twenty-one",
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

    def format_observation(self, observation: blackjack.State) -> str:
        player_sum, dealer_card, usable_ace = (int(part) for part in observation)
        dealer = "ace" if dealer_card == 1 else NUMBERS[dealer_card]
        return f"Your hand: {'soft' if usable_ace else 'hard'} {NUMBERS[player_sum]} against {dealer}"

    def reference_returns(self) -> dict[str, float]:
        """Exact expected returns under the environment's default rules (`natural=False, sab=False`)."""
        below_17 = np.array([player_sum < 17 for player_sum, _, _ in blackjack.states()], dtype=float)
        return {
            "random": blackjack.policy_value(np.full_like(below_17, 0.5)),
            "always stay": blackjack.policy_value(np.zeros_like(below_17)),
            "hit below 17": blackjack.policy_value(below_17),
            "optimal": blackjack.policy_value(blackjack.optimal_policy()),
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
