"""An agent for guessing a number."""

from typing import Any

import gymnasium

from lgym.agents.base import TextAgent
from lgym.envs.guess_number import GuessNumberEnv, reference_returns
from lgym.types import ParsedAction

HINTS = {-1: "Too low.", 0: "No guess yet.", 1: "Too high."}


class GuessNumberAgent(TextAgent):
    """`lgym/GuessNumber-v0`, in free text: what the hints leave open, and the guesses that are left.

    Args:
        show_bounds: say the lowest and the highest number that is left; without it only the last hint, so
            that the model has to remember its guesses (`data.history: full`).
    """

    pattern = r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
    penalty = -0.1

    def __init__(self, show_bounds: bool = True) -> None:
        self.show_bounds = show_bounds
        self._env = GuessNumberEnv()

    def bind(self, env: gymnasium.Env) -> None:
        """Read the range of the numbers, and the guesses of an episode."""
        if isinstance(env.unwrapped, GuessNumberEnv):
            self._env = env.unwrapped

    @property
    def system_prompt(self) -> str:
        return (
            f"Guess a number between {self._env.lowest} and {self._env.highest} by halving what is left. "
            "Answer with the number alone."
        )

    def format_observation(self, observation: Any) -> str:
        low, high, hint, left = (int(part) for part in observation)
        known = f"Between {low} and {high}." if self.show_bounds else HINTS[hint]
        return f"{known} {left} {'guess' if left == 1 else 'guesses'} left."

    def extract_action(self, text: str) -> ParsedAction:
        """Take a whole number of the range, such as 1024, 1,024 or 1024.0."""
        whole, _, decimals = text.replace(",", "").partition(".")
        try:
            number = int(whole)
        except ValueError:
            return ParsedAction.failure(f"{text[:100]!r} is no number")
        if decimals.strip("0"):
            return ParsedAction.failure(f"{text[:100]!r} is no whole number")
        if self._env.lowest <= number <= self._env.highest:
            return ParsedAction(number)
        return ParsedAction.failure(f"{number} is not between {self._env.lowest} and {self._env.highest}")

    def reference_returns(self) -> dict[str, float]:
        """Exact, of guesses at random among those that the hints leave open, and of the best."""
        return reference_returns(self._env.highest - self._env.lowest + 1, self._env.guesses)
