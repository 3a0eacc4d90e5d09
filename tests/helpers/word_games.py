"""Games by text, as their authors write them: chance comes from the generators of the whole process."""

from __future__ import annotations

import random

import numpy as np


class Guess:
    """A letter to guess, from `random`; each hint, from `numpy.random`, is another word."""

    def __init__(self, letters: str = "abc", turns: int = 3) -> None:
        self.letters, self.turns = letters, turns

    def reset(self) -> str:
        self.secret, self.left = random.choice(self.letters), self.turns
        return f"Guess one of {self.letters}."

    def step(self, text: str):
        self.left -= 1
        hit = self.secret in text.lower()
        hint = np.random.choice(["No.", "Not that.", "Again."])
        return f"{hint} You said {text!r}.", float(hit), hit or self.left == 0


class Gem:
    """GEM's interface: Gymnasium's, without spaces."""

    closed = False

    def reset(self, seed=None):
        self.seed = seed
        return "Say a number.", {"suffix": "Now."}

    def step(self, action):
        return "Done.", 0.5, False, action == "5", {"said": action}

    def close(self):
        Gem.closed = True


class Observed:
    """A game of one's own that has a method by the name of TextArena's."""

    def get_observation(self):
        return "Guess."

    def reset(self):
        return self.get_observation()

    def step(self, text):
        return f"You said {text}.", 0.0, False


class Arena:
    """TextArena's interface, for one player."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id

    def reset(self, num_players, seed=None):
        assert num_players == 1
        self.said = []

    def get_observation(self):
        return 0, f"{self.env_id}: {self.said}"

    def step(self, action):
        self.said.append(action)
        return len(self.said) == 2, {"turn": len(self.said)}

    def close(self):
        return {0: 0.75}, {0: {"role": f"Player 0 of {len(self.said)} turns"}}


def make(env_id: str) -> Arena:
    return Arena(env_id)


class Wordless:
    def reset(self):
        return [1, 2]

    def step(self, text):
        return text


class Drawing(Guess):
    """Draws at its making too."""

    def __init__(self) -> None:
        super().__init__(letters="".join(random.sample("abcdefgh", 5)))
