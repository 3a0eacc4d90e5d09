"""The environment and its agent without any model: random play, and whether a seed brings back the same episode."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.data.questions import action_of, offered
from lgym.data.seeds import stream

SECONDS = 4.0  # of random play at most
SAME_TURNS = 20  # played with either of two environments

Question = tuple[str, tuple[str, ...]]
"""An observation's text, and the candidates at it."""


@dataclass(frozen=True)
class Score:
    """A mean return with half the width of its 95 % interval, 1.96 s / sqrt(n); infinite for one episode."""

    mean: float
    ci95: float
    episodes: int


def score(returns: Sequence[float]) -> Score | None:
    if not returns:
        return None
    mean, n = float(np.mean(returns)), len(returns)
    return Score(mean, 1.96 * float(np.std(returns, ddof=1)) / math.sqrt(n) if n > 1 else math.inf, n)


@dataclass
class RandomPlay:
    """Episodes of uniformly random candidates; of actions of the environment's space where the agent offers none."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    questions: dict[Question, None] = field(default_factory=dict)
    """Every distinct one, in the order they were met."""

    distinct: list[int] = field(default_factory=list)
    """After each turn, how many distinct prompts there were."""

    longest: list[tuple[str, str]] = field(default_factory=list)
    """The longest episode's observations and answers."""

    truncated: int = 0
    """Episodes that a time limit ended, and not the game."""

    seconds: float = 0.0

    @property
    def constant(self) -> bool:
        return len({text for text, _ in self.questions}) == 1

    def distinct_after(self, turns: float) -> float:
        """How many distinct prompts so many turns lead to; beyond those played as n^b grows, with b from their second
        half (Heaps' law): 0 where no new ones came, 1 where every turn brought one."""
        played = len(self.distinct)
        if turns <= played:
            return float(self.distinct[max(0, math.ceil(turns) - 1)])
        half, whole = self.distinct[(played - 1) // 2], self.distinct[-1]
        return whole * (turns / played) ** math.log2(whole / half)


def play_at_random(
    make_env: Callable[[], gymnasium.Env],
    agent: TextAgent,
    *,
    history: Any,
    episodes: int,
    turns: int,
    seed: int,
    seconds: float = SECONDS,
) -> RandomPlay:
    """Plays at least so many episodes and turns, unless the time is up before.

    Args:
        make_env: makes the environment.
        agent: its words.
        history: how many earlier turns a prompt shows, or `full`: tells which prompts are distinct.
        episodes: whole episodes to play.
        turns: turns to play.
        seed: reset seed of the first episode.
        seconds: no episode is begun after these, and none goes on.
    """
    env, rng, play = make_env(), np.random.default_rng(stream(seed, "fit", "actions")), RandomPlay()
    env.action_space.seed(int(rng.integers(2**31)))  # not what any episode is reset with
    prompts: set[Any] = set()
    started = time.perf_counter()
    try:
        while len(play.lengths) < episodes or len(play.distinct) < turns:
            if time.perf_counter() - started > seconds and play.distinct:
                break
            _episode(env, agent, rng, play, prompts, history, seed + len(play.lengths), started + seconds)
    finally:
        env.close()
    play.seconds = time.perf_counter() - started
    return play


def _episode(
    env: gymnasium.Env,
    agent: TextAgent,
    rng: np.random.Generator,
    play: RandomPlay,
    prompts: set[Any],
    history: Any,
    seed: int,
    deadline: float,
) -> None:
    observation, info = env.reset(seed=seed)
    shown: deque[tuple[str, str]] = deque(maxlen=None if history == "full" else history)
    turns: list[tuple[str, str]] = []
    total, over, past, terminated, truncated = 0.0, False, 0, False, False
    while not over and (time.perf_counter() < deadline or not play.distinct):
        question = ask(agent, observation, info)
        play.questions.setdefault(question)
        prompts.add((past, question) if history == "full" else (tuple(shown), question))
        play.distinct.append(len(prompts))
        action, answer = answer_at_random(env, agent, question, rng)
        turns.append((question[0], answer))
        shown.append(turns[-1])
        past = hash((past, turns[-1]))  # as good as all that went before
        observation, reward, terminated, truncated, info = env.step(action)
        total, over = total + float(reward), bool(terminated or truncated)
    if over:
        play.returns.append(total)
        play.lengths.append(len(turns))
        play.truncated += bool(truncated and not terminated)
    if len(turns) > len(play.longest):
        play.longest = turns


def ask(agent: TextAgent, observation: Any, info: Any) -> Question:
    """What the agent makes of an observation; no candidates where it offers none."""
    return agent.format_observation(observation), offered(agent, observation, info) or ()


def answer_at_random(env: gymnasium.Env, agent: TextAgent, question: Question, rng: np.random.Generator) -> tuple[Any, str]:
    """An action and its words."""
    if not question[1]:
        action = env.action_space.sample()
        return action, str(action)
    answer = question[1][int(rng.integers(len(question[1])))]
    return action_of(agent, answer), answer


def seed_fault(make_env: Callable[[], gymnasium.Env], agent: TextAgent, seeds: Sequence[int]) -> str | None:
    """How two environments differ that were reset with the same seed and then given the same actions; `None` if they do not.

    One of them has played before, as an environment in a run has, so that what it carries over shows too.
    """
    used, fresh = make_env(), make_env()
    rng = np.random.default_rng(0)
    try:
        for seed in seeds:
            _wear(used, agent, seed + 1, rng)
            fault = _difference(used, fresh, agent, seed, rng)
            if fault is not None:
                return fault
    finally:
        used.close()
        fresh.close()
    return None


def _wear(env: gymnasium.Env, agent: TextAgent, seed: int, rng: np.random.Generator) -> None:
    observation, info = env.reset(seed=seed)
    for _ in range(3):
        action, _ = answer_at_random(env, agent, ask(agent, observation, info), rng)
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return


def _difference(
    one: gymnasium.Env, other: gymnasium.Env, agent: TextAgent, seed: int, rng: np.random.Generator
) -> str | None:
    reached = [env.reset(seed=seed) for env in (one, other)]
    one.action_space.seed(seed)
    paid: list[tuple[float, bool]] = [(0.0, False)] * 2
    for turn in range(SAME_TURNS + 1):
        where = f"reset with seed {seed} and given the same {turn} actions, it"
        if paid[0] != paid[1]:
            return f"{where} paid {paid[0][0]:g} and then {paid[1][0]:g}, or ended once and went on once"
        if paid[0][1]:
            return None
        first, second = (ask(agent, *place) for place in reached)
        if first != second:
            return f"{where} showed {first[0]!r} and then {second[0]!r}, or offered other candidates"
        action, _ = answer_at_random(one, agent, first, rng)
        steps = [env.step(action) for env in (one, other)]
        reached = [(step[0], step[4]) for step in steps]
        paid = [(float(step[1]), bool(step[2] or step[3])) for step in steps]
    return None
