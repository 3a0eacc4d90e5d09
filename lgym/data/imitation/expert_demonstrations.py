"""Demonstrations that a scripted expert plays."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import gymnasium
import numpy as np
from tqdm import tqdm

from lgym.agents.base import TextAgent
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.scripted_expert import AdvisedEnv, ScriptedExpert
from lgym.types import ConfigError


class ExpertDemonstrations:
    """Demonstrations of a scripted expert, played in the environment.

    An expert makes no mistakes, so that nothing shows what to do after one. With `noise` some of its answers
    are not played but a random one is, as the model's mistakes will be, and the expert says what to do there
    ("DART: Noise Injection for Robust Imitation Learning", Laskey et al. 2017, arXiv:1703.09327).

    Args:
        policy: the expert, by class_path: anything with `act(observation, info)`. One that plans may have
            `begin(env)`, called when an episode begins, and `played(action)`, called with what was played in
            a turn; one that sees no way on answers `None`, which ends the episode.
        episodes: the number of episodes that it plays, one or more.
        seed: the reset seed of the first episode; the next are seed + 1, seed + 2 and so on.
        min_return: the lowest return of an episode that is kept; null keeps all.
        noise: the probability of a turn to be played by a random one of the agent's candidates. What is
            learned there is the expert's answer all the same.
    """

    def __init__(
        self,
        policy: ScriptedExpert,
        episodes: int = 100,
        seed: int = 0,
        min_return: float | None = None,
        noise: float = 0.0,
    ) -> None:
        if episodes < 1:
            raise ConfigError(f"The expert's episodes are {episodes}; give 1 or more.")
        if not 0.0 <= noise < 1.0:
            raise ConfigError(f"The expert's noise is {noise}; it must be 0 or more, and below 1.")
        self.policy = policy
        self.episodes = episodes
        self.seed = seed
        self.min_return = min_return
        self.noise = noise

    def demonstrations(self, agent: TextAgent, make_env: Callable[[], gymnasium.Env]) -> list[Demonstration]:
        """Every turn of the kept episodes. Raises `ValueError` for an answer without an action, or if none is
        kept."""
        env = make_env()
        seeds = tqdm(range(self.seed, self.seed + self.episodes), "expert episodes", leave=False)
        try:
            episodes = [self._play(env, agent, seed) for seed in seeds]
        finally:
            env.close()
        threshold = float("-inf") if self.min_return is None else self.min_return
        best_return = max(episode_return for episode_return, _ in episodes)
        if best_return < threshold:
            raise ConfigError(
                f"None of the {self.episodes} episodes of {type(self.policy).__name__} returned "
                f"{threshold:g} or more, the best {best_return:g}. Lower min_return, or raise episodes."
            )
        return [turn for episode_return, turns in episodes if episode_return >= threshold for turn in turns]

    def _play(self, env: gymnasium.Env, agent: TextAgent, seed: int) -> tuple[float, list[Demonstration]]:
        advised = AdvisedEnv(env, self.policy)
        turns: list[Demonstration] = []
        episode_return = 0.0
        rng = np.random.default_rng(
            np.random.SeedSequence(seed, spawn_key=(1,))
        )  # apart from the environment
        advised.reset(seed=seed)
        while not turns or advised.answer is not None:  # it is None at the end, too
            turn = advised.demonstration(agent)
            noise = self._noise(agent, turn.candidates, rng)
            action = agent.parse(noise or turn.response_text).action
            _, reward, *_ = advised.step(action)
            turns.append(replace(turn, begins=not turns, reward=float(reward), played_text=noise))
            episode_return += float(reward)
        return episode_return, turns

    def _noise(self, agent: TextAgent, candidates: Sequence[str], rng: np.random.Generator) -> str:
        """A random candidate, with the probability `noise`; otherwise empty."""
        if rng.random() >= self.noise:
            return ""
        names = candidates or agent.actions
        if not names:
            raise ConfigError(
                f"The expert's noise is {self.noise:g}, which draws from an agent's actions, and "
                f"{type(agent).__name__} names none: leave noise out."
            )
        return names[int(rng.integers(len(names)))]
