import random


class GuessTheNumber:
    def reset(self):
        self.number, self.guesses = random.randint(1, 20), 0
        return "Guess my number, from 1 to 20."

    def step(self, text):  # returns the next text, the reward, and whether the game is over
        self.guesses += 1
        guess = int(text) if text.isdigit() else 0
        if guess == self.number:
            return "Right!", 1.0, True
        return f"It is {'larger' if guess < self.number else 'smaller'} than {guess}.", 0.0, self.guesses == 6


class RandomGuesses:
    """The form of an answer, and nothing of how to play."""

    def __init__(self, form: str = "{}", largest: int = 20):
        self.chance, self.form, self.largest = random.Random(0), form, largest

    def act(self, observation, info):
        return self.form.format(self.chance.randint(1, self.largest))
