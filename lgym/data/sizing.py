"""The size of a rollout and of its minibatches where none is given: from a few thousand random turns."""

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from lgym.data.data_config import DataConfig
from lgym.data.random_play import RandomPlay
from lgym.types import Learner


@dataclass(frozen=True)
class Choice:
    """A setting that random play decided."""

    name: str
    value: Any
    reason: str
    place: str = "data"  # of the setting in a YAML: data or model

    @property
    def line(self) -> str:
        """The setting as a line of a YAML, with the reason as its comment."""
        return f"{self.place}.{self.name}: {in_words(self.value)}  # {self.reason}"


def in_words(value: Any) -> str:
    """A setting's value: of an object the name of its class."""
    if isinstance(value, list):
        return f"[{', '.join(map(in_words, value))}]"
    return str(value) if isinstance(value, int | float | dict) else type(value).__name__


FEWEST_TURNS, ENOUGH_TURNS, MOST_TURNS = 512, 4096, 32768
FEWEST_EPISODES, FEWEST_LEARNED = 32, 64
REPLAY_TURNS = 1024
"""The most turns of a rollout whose transitions are kept and learned from again and again."""

FEWEST_ENVS, DEFAULT_ENVS, MOST_ENVS = 8, 16, 256
EPISODES_PER_ENV = 2

ASSUMED_LENGTH = 8.0
"""Turns of an episode where random play is no try at the game."""

MOST_STEPS = 512
"""Turns of one environment in a rollout: each step of all environments together takes a time of its own."""

TOKENS_PER_SECOND = {"cpu": 1_000.0, "mps": 9_000.0, "cuda": 10_000.0}
"""Tokens that a model of 135M parameters with adapters in a third of its blocks learns from, forward and
backward; of a CPU by core. Rough figures: they decide the size, and only a fixed figure makes a run's size
repeat. A GPU waits for the CPU to start its operations, as many for any model of so many blocks."""

TEXT_RATE = 0.33
"""Share of that for a policy that writes text, which has adapters in all blocks."""

ROLLOUT_SECONDS, ROLLOUT_SECONDS_OF_TEXT = 20.0, 60.0
"""Time that a rollout may take where none is given: of choices, and of a policy that writes text."""

CHARACTERS_PER_TOKEN = 4
NEW_TOKEN_COST, PLAY_COST = 3, 0.4
"""Cost of a generated token, and of one that is only asked about, in tokens that are learned from once."""

PASSES, FEWEST_PASSES, MOST_PASSES = 4, 2, 8
FEWEST_PROMPTS, STEPS = 4, 24
"""Distinct prompts of a minibatch at the least, and steps that a rollout is learned in where they allow."""


def size_choices(
    settings: DataConfig, open_names: Set[str], play: RandomPlay, learner: Learner, most_prompts: float
) -> list[Choice]:
    """The settings that make up the size of a rollout.

    Args:
        settings: the run's, which do not say how much a rollout plays.
        open_names: those that are not given.
        play: random play in its environment.
        learner: which learns from the rollouts.
        most_prompts: distinct prompts that one pass has the time for.
    """
    length = play.mean_length if play.tries else ASSUMED_LENGTH
    why_envs = f"an episode has {length:,.0f} turns"
    if not play.tries:
        why_envs += " at a guess: random characters do not play the game"
    writes = learner.policy.generates_text
    if writes:  # every response is another
        play = replace(play, distinct=list(range(1, len(play.distinct) + 1)))
    names = {"num_envs", "update_epochs"} - open_names
    given: dict[str, int] = {name: getattr(settings, name) for name in names}
    seconds = rollout_seconds(settings, learner)
    turns, passes, prompts = turns_and_passes(
        play,
        length,
        most_prompts,
        1 if learner.single_pass else given.get("update_epochs"),
        seconds / play.turn_seconds if play.turn_seconds else math.inf,
        fewest_passes=1 if writes else FEWEST_PASSES,
    )
    if learner.uses_replay:
        turns = min(turns, REPLAY_TURNS)
    num_envs = given.get("num_envs") or environments(turns, length)
    turns = num_envs * max(1, round(turns / num_envs))
    distinct = play.distinct_after(turns)
    limit = None if writes else prompts  # a response takes longer to write than to learn from
    minibatches = number_of_minibatches(min(distinct, limit or distinct), passes)
    amount: dict[str, int | None] = {"episodes_per_rollout": None, "turns_per_rollout": turns}
    if learner.needs_whole_episodes or settings.episode_buffers:
        groups = max(2, round(turns / length / settings.group_size))
        amount = {"episodes_per_rollout": settings.group_size * groups, "turns_per_rollout": None}
    why_turns = f"about {distinct:,.0f} distinct prompts, {seconds:g} s at a rough estimate"
    choices = [
        Choice("num_envs", num_envs, why_envs),
        *(Choice(name, value, why_turns) for name, value in amount.items()),
    ]
    if not learner.uses_replay:
        choices += [
            Choice("update_epochs", passes, "passes over a rollout"),
            Choice("prompts_per_pass", limit, "drawn in proportion to their turns, when there are more"),
            Choice("num_minibatches", minibatches, "of a pass; so many steps, however many prompts are met"),
        ]
    return [choice for choice in choices if choice.name in open_names and choice.value is not None]


def rollout_seconds(settings: DataConfig, learner: Learner) -> float:
    """Time that a rollout may take, playing and learning."""
    if settings.target_rollout_seconds is not None:
        return settings.target_rollout_seconds
    return ROLLOUT_SECONDS_OF_TEXT if learner.policy.generates_text else ROLLOUT_SECONDS


def prompts_in(seconds: float, play: RandomPlay, learner: Learner, device: torch.device) -> float:
    """Distinct prompts that a model of 135M parameters learns from in so many seconds, roughly."""
    rate = TOKENS_PER_SECOND.get(device.type, TOKENS_PER_SECOND["cuda"])
    rate *= TEXT_RATE if learner.policy.generates_text else 1.0
    cores = torch.get_num_threads() if device.type == "cpu" else 1
    new_tokens = learner.policy.max_new_tokens if learner.policy.generates_text else 0
    return seconds * rate * cores / (tokens_per_turn(play.questions) + NEW_TOKEN_COST * new_tokens)


def tokens_per_turn(questions: Iterable[tuple[str, tuple[str, ...]]]) -> float:
    """Mean tokens of an observation and its candidates, from the number of characters."""
    return fmean(
        1 + len(candidates) + (len(text) + sum(map(len, candidates))) / CHARACTERS_PER_TOKEN
        for text, candidates in questions
    )


def turns_and_passes(
    play: RandomPlay,
    length: float,
    most: float,
    passes: int | None,
    most_turns: float = math.inf,
    fewest_passes: int = FEWEST_PASSES,
) -> tuple[int, int, int]:
    """Turns of a rollout, passes over it, and distinct prompts of a pass.

    Most turns of a long rollout are at few prompts, so a rollout is as long as half of the time allows to
    play, but of `FEWEST_EPISODES` episodes or `ENOUGH_TURNS` at least; passes that do not fit into the rest
    learn from prompts that are drawn in proportion to their turns. Few prompts make few steps, and get more
    passes.

    Args:
        play: random play in the run's environment.
        length: turns of an episode.
        most: distinct prompts that there is time to learn from once.
        passes: over a rollout, where they are given.
        most_turns: turns that the environment alone plays in the time: only a slow one has fewer than others.
        fewest_passes: where the usual number does not fit into the time.
    """
    fewest = min(ENOUGH_TURNS, max(FEWEST_TURNS, 2 ** math.ceil(math.log2(FEWEST_EPISODES * length))))
    turns = MOST_TURNS
    while turns > fewest and play.distinct_after(turns) * PLAY_COST > most / 2:
        turns //= 2
    while turns > max(FEWEST_TURNS, most_turns):
        turns //= 2
    distinct = play.distinct_after(turns)
    rest = max(most / 2, most - distinct * PLAY_COST)
    steps_of_pass = math.ceil(distinct / FEWEST_PROMPTS)
    wanted = min(MOST_PASSES, max(PASSES, STEPS // steps_of_pass))
    passes = passes or (wanted if wanted * distinct <= rest else fewest_passes)
    return turns, passes, max(FEWEST_LEARNED, math.ceil(rest / passes))


def environments(turns: int, length: float) -> int:
    """Number of environments that share the turns of a rollout: each plays two episodes, or `MOST_STEPS`
    turns of one that is longer."""
    wanted = max(1.0, turns / (EPISODES_PER_ENV * length))
    return min(MOST_ENVS, max(FEWEST_ENVS, turns // MOST_STEPS, 2 ** round(math.log2(wanted))))


def number_of_minibatches(prompts: float, passes: int) -> int:
    """Minibatches of a pass over so many distinct prompts: for `STEPS` steps in all passes, but none of less
    than `FEWEST_PROMPTS`."""
    return max(1, min(round(STEPS / passes), math.ceil(prompts / FEWEST_PROMPTS)))


def default_envs(turns: int | None) -> int:
    """Number of environments where none is given: 16, or the most below that which share a rollout's
    turns."""
    return next(n for n in range(DEFAULT_ENVS, 0, -1) if (turns or DEFAULT_ENVS) % n == 0)
