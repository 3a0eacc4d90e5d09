"""The environment and its agent without a model: random play, and a test of the reset seed."""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from lgym.agents.base import TextAgent
from lgym.data.prompts.action_candidates import action_of, offered
from lgym.data.seeds import stream
from lgym.envs.make import time_limit
from lgym.envs.workers import BrokenEnvironmentError, EnvironmentRaisedError, answer_of
from lgym.functional import mean_margin
from lgym.terminal import bar

COMPARED_TURNS = 20

Question = tuple[str, tuple[str, ...]]  # an observation's text, and the candidates at it


def score(returns: Sequence[float]) -> dict[str, float] | None:
    """Mean return with half the width of its 95 % interval; `None` for no episode."""
    if not returns:
        return None
    n = len(returns)
    std = torch.tensor(returns, dtype=torch.float64).var(correction=min(n - 1, 1)).sqrt()
    return {"mean": float(np.mean(returns)), "ci95": float(mean_margin(std, n)), "episodes": n}


@dataclass
class RandomPlay:
    """Episodes of uniformly random candidates, or of sampled actions where the agent offers no candidates.

    Attributes:
        returns: return of every finished episode.
        lengths: turns of every finished episode.
        observations: of every turn.
        questions: every distinct question, in the order they were met.
        distinct: number of distinct prompts after each turn.
        longest: the longest episode's observations and answers.
        rewards: every distinct reward of a turn.
        truncated: number of episodes that a time limit ended, and not the game.
        time_limit: turns after which an episode is truncated; None for an environment without a limit.
        tries: whether answers were tries at the game, and no random characters where an action is any text.
        seconds: time that all of it took.
        making_seconds: time that making the environment took.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    observations: list[Any] = field(default_factory=list)
    questions: dict[Question, None] = field(default_factory=dict)
    distinct: list[int] = field(default_factory=list)
    longest: list[tuple[str, str]] = field(default_factory=list)
    rewards: set[float] = field(default_factory=set)
    truncated: int = 0
    time_limit: int | None = None
    tries: bool = True
    seconds: float = 0.0
    making_seconds: float = 0.0

    @property
    def mean_length(self) -> float:
        """Mean turns of an episode; of the longest so far, where none has ended."""
        return float(np.mean(self.lengths or [len(self.longest)]))

    @property
    def turn_seconds(self) -> float:
        """Mean time of a turn, the agent's words included."""
        return self.seconds / max(1, len(self.distinct))

    def distinct_after(self, turns: float) -> float:
        """Number of distinct prompts after so many turns.

        Beyond those played it grows as n^b, with b from their second half (Heaps' law): b = 0 where no new
        ones came, b = 1 where every turn brought one.
        """
        played = len(self.distinct)
        if turns <= played:
            return float(self.distinct[max(0, math.ceil(turns) - 1)])
        half, whole = self.distinct[(played - 1) // 2], self.distinct[-1]
        return whole * (turns / played) ** math.log2(whole / half)


class RandomTurn(NamedTuple):
    """An observation with its question, the random answer, and the environment's reaction."""

    observation: Any
    question: Question
    answer: str
    reward: float
    terminated: bool
    truncated: bool


def random_turns(
    env: gymnasium.Env, agent: TextAgent, seed: int, rng: np.random.Generator, space: gymnasium.Space
) -> Iterator[RandomTurn]:
    """Plays an episode at random, turn by turn; actions come from `space` where the agent offers no
    candidates.

    Raises:
        BrokenEnvironmentError: for whatever the environment raises.
    """
    observation, info = _call(env, "raised at reset", lambda: env.reset(seed=seed))
    terminated = truncated = False
    while not (terminated or truncated):
        asked = copy.deepcopy(observation)  # some environments write the next one into the same array
        question = ask(agent, asked, info)
        if candidates := question[1]:
            answer = candidates[int(rng.integers(len(candidates)))]
            action = action_of(agent, answer)
        else:
            action = space.sample()
            answer = str(action)
        observation, reward, terminated, truncated, info = _call(
            env, f"raised for the action {action!r}", partial(env.step, action)
        )
        yield RandomTurn(asked, question, answer, float(reward), bool(terminated), bool(truncated))


def _call(env: gymnasium.Env, what: str, work: Callable[[], Any]) -> Any:
    try:
        return answer_of(work)
    except EnvironmentRaisedError as error:
        raise BrokenEnvironmentError(
            f"{env} {what}: {error.said}. Its action space is {env.action_space}. The fault is the "
            "environment's, or that of a wrapper (data.wrappers) that changes a space and not what passes "
            "through it."
        ) from error


def ask(agent: TextAgent, observation: Any, info: Any) -> Question:
    """The agent's question at an observation, without candidates where it offers none."""
    return agent.format_observation(observation), offered(agent, observation, info) or ()


def play_at_random(
    make_env: Callable[[], gymnasium.Env],
    agent: TextAgent,
    *,
    history: Any,
    episodes: int,
    turns: int,
    seed: int,
    seconds: float = math.inf,
) -> RandomPlay:
    """Plays at least so many episodes and turns, unless the time is up before.

    Args:
        make_env: makes the environment.
        agent: its agent.
        history: number of earlier turns in a prompt, or `full`: tells which prompts are distinct.
        episodes: whole episodes to play.
        turns: turns to play.
        seed: reset seed of the first episode.
        seconds: time after which no episode begins, and none goes on.
    """
    rng = np.random.default_rng(stream(seed, "fit", "actions"))
    play = RandomPlay()
    prompts: set[Any] = set()
    started = time.perf_counter()
    with closing(make_env()) as env, bar("playing at random") as show:
        play.making_seconds = time.perf_counter() - started
        started = time.perf_counter()
        env.action_space.seed(int(rng.integers(2**31)))  # not the reset seed of any episode
        while len(play.lengths) < episodes or len(play.distinct) < turns:
            if time.perf_counter() - started > seconds and play.distinct:
                break
            episode = random_turns(env, agent, seed + len(play.lengths), rng, env.action_space)
            _record(play, episode, prompts, history, deadline=started + seconds)
            show(len(play.lengths), max(episodes, len(play.lengths)))
        play.time_limit = time_limit(env)
        takes_texts = isinstance(env.action_space, gymnasium.spaces.Text)
    play.tries = not takes_texts or any(candidates for _, candidates in play.questions)
    play.seconds = time.perf_counter() - started
    return play


def _record(
    play: RandomPlay, episode: Iterator[RandomTurn], prompts: set[Any], history: Any, deadline: float
) -> None:
    turns: list[tuple[str, str]] = []
    total, past = 0.0, 0
    for turn in episode:
        play.observations.append(turn.observation)
        play.questions.setdefault(turn.question)
        shown = past if history == "full" else tuple(turns[max(0, len(turns) - history) :])
        prompts.add((shown, turn.question))
        play.distinct.append(len(prompts))
        turns.append((turn.question[0], turn.answer))
        past = hash((past, turns[-1]))  # stands for all that went before
        play.rewards.add(turn.reward)
        total += turn.reward
        if turn.terminated or turn.truncated:
            play.returns.append(total)
            play.lengths.append(len(turns))
            play.truncated += turn.truncated and not turn.terminated
        elif time.perf_counter() >= deadline:
            break
    play.longest = max(play.longest, turns, key=len)


def seed_fault(
    make_env: Callable[[], gymnasium.Env], agent: TextAgent, seeds: Sequence[int], seconds: float = math.inf
) -> str | None:
    """First difference between two environments that are reset with the same seeds and given the same
    actions; after so many `seconds` no further seed is tried.

    One of them has played before, as an environment in a run has, so that state which it carries over shows
    too.

    Returns:
        The difference in words; `None` if there is none.
    """
    with closing(make_env()) as used, closing(make_env()) as fresh:
        deadline = time.perf_counter() + seconds
        within = (seed for n, seed in enumerate(seeds) if n == 0 or time.perf_counter() < deadline)
        return next(_differences(used, fresh, agent, within), None)


def _differences(
    used: gymnasium.Env, fresh: gymnasium.Env, agent: TextAgent, seeds: Iterable[int]
) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for seed in seeds:
        list(islice(random_turns(used, agent, seed + 1, rng, used.action_space), 3))
        episodes = []
        for env in (used, fresh):
            space = copy.deepcopy(fresh.action_space)  # the environments may share theirs
            space.seed(seed)
            episodes.append(random_turns(env, agent, seed, np.random.default_rng(seed), space))
        for turn, (first, second) in enumerate(islice(zip(*episodes, strict=False), COMPARED_TURNS)):
            if first.question != second.question:
                yield (
                    f"reset with seed {seed} and given the same {turn} actions, it showed "
                    f"{first.question[0]!r} and then {second.question[0]!r}, or offered other candidates"
                )
            elif first[1:] != second[1:]:  # observations may be arrays; their texts are equal
                yield (
                    f"reset with seed {seed} and given the same {turn + 1} actions, it paid {first.reward:g} "
                    f"and then {second.reward:g}, or ended once and went on once"
                )
