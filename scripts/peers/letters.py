"""A task of one turn for models that speak: eight prompts, paid for the share of vowels in the reply."""

from __future__ import annotations

SYSTEM = "You are a poet who loves open sounds."
PROMPTS = tuple(
    f"Write a few words about {subject}."
    for subject in (
        "the sea",
        "an old house",
        "a train",
        "the moon",
        "bread",
        "a river",
        "winter",
        "the city",
    )
)


def reward(text: str) -> float:
    letters = [letter for letter in text.lower() if letter.isalpha()]
    return sum(letter in "aeiou" for letter in letters) / len(letters) if letters else 0.0
