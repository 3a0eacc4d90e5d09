"""Dataset aggregation: what an expert would have done where the model itself has played."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from tqdm import tqdm

from lgym import distributed
from lgym.agents.base import TextAgent
from lgym.data.imitation.best_episodes import FinishedEpisode
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.scripted_expert import AdvisedEnv, ScriptedExpert
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.rollout.env_runner import EnvRunner
from lgym.rollout import Response
from lgym.types import ConfigError


class DAgger:
    """The expert's answers in the run's own episodes, whatever the model answered there.

    "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning", Ross et al.
    2011, arXiv:1011.0686, algorithm 3.1, in which the model plays every turn (beta = 0); demonstrations, if
    there are any, are the data that it begins with. For the expert to see them, the episodes of a rollout are
    played a second time, from their reset seeds and without the model, one after the other and in the run's
    own process (`data.subprocess_envs` or not).

    Args:
        policy: the expert, as `ExpertDemonstrations` has it. Where it sees no way on, its answers end.
        capacity: the maximum number of episodes; the oldest leave first.
    """

    def __init__(self, policy: ScriptedExpert, capacity: int = 1000) -> None:
        if capacity < 1:
            raise ConfigError(f"dagger's capacity is {capacity}; it must be 1 or more.")
        self.policy = policy
        self._episodes: deque[tuple[Demonstration, ...]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._episodes)

    def try_out(self, agent: TextAgent, make_env: Callable[[], gymnasium.Env], seed: int) -> None:
        """Ask the expert at the first observation behind a reset seed, twice, before anything is played.

        Raises:
            ConfigError: if it cannot answer, the answer names no action, or the observation is another one
                the second time.
        """
        env = AdvisedEnv(make_env(), deepcopy(self.policy))
        shown = []
        try:
            for _ in range(2):
                observation, _ = env.reset(seed=seed)
                shown.append(agent.format_observation(observation))
                if env.answer is not None:
                    env.demonstration(agent)
        finally:
            env.close()
        if shown[0] != shown[1]:
            raise _unseeded(env, f"Reset with seed {seed} showed {shown[0]!r}, and then {shown[1]!r}")

    def attach(
        self, make_env: Callable[[], gymnasium.Env], prompts: EpisodePrompts, remembers: bool = False
    ) -> None:
        """Play episodes in these environments; the prompts say how, and are not shown to anyone. They are
        those of the model, unless it `remembers`."""
        self._make_env = make_env
        self._prompts = prompts
        self._remembers = remembers

    def add(self, episodes: Iterable[tuple[Any, ...]]) -> None:
        """Add the expert's answers in a rollout's `FinishedEpisode`s, those of all processes; each asks about
        its share.

        Raises:
            ConfigError: if an episode is another one when it is played again, or an answer names no action.
        """
        episodes, size = list(episodes), distributed.world_size()
        expert = deepcopy(self.policy)  # a resumed run's is no other, whatever it has drawn or planned
        env = AdvisedEnv(self._make_env(), expert)
        try:
            share = tqdm(episodes[distributed.rank() :: size], "the expert's answers", leave=False, delay=2)
            answers = [tuple(self._answers(env, FinishedEpisode(*episode))) for episode in share]
        finally:
            env.close()
        shares = distributed.all_gather_object(answers)
        self._episodes += [shares[number % size][number // size] for number in range(len(episodes))]

    def turns(self) -> list[Demonstration]:
        """The distinct turns of the kept episodes. One observation may have several answers."""
        return list(dict.fromkeys(turn for turns in self._episodes for turn in turns))

    def state_dict(self) -> dict[str, Any]:
        """The kept episodes in plain numbers and texts."""
        return {"episodes": [[tuple(vars(turn).values()) for turn in turns] for turns in self._episodes]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` wrote."""
        self._episodes.clear()
        self._episodes += [tuple(map(Demonstration.restored, turns)) for turns in state["episodes"]]

    def _answers(self, env: AdvisedEnv, episode: FinishedEpisode) -> Iterator[Demonstration]:
        runner = EnvRunner(env, self._prompts)
        runner.reset(episode.reset_seed)
        for turn, reward in zip(episode.turns, episode.rewards, strict=True):
            if env.answer is None and runner.live:
                return
            same = runner.live and (
                self._remembers or self._prompts.is_asked(runner.prompt, turn.observation_text)
            )
            if same:
                advised = env.demonstration(self._prompts.agent)
                choice = 0 if turn.candidates else -1
                again, *_ = runner.step(Response((), (), True, turn.response_text, choice=choice))
                same = turn.candidates in ((), advised.candidates) and np.float32(again) == np.float32(reward)
            if not same:
                raise _unseeded(
                    env,
                    f"The episode with reset seed {episode.reset_seed} was another one when the same answers "
                    "were played again",
                )
            yield replace(turn, response_text=advised.response_text, response_ids=())
        if env.answer is not None and runner.live:
            raise _unseeded(env, f"The episode with reset seed {episode.reset_seed} did not end where it had")


def _unseeded(env: gymnasium.Env, what_happened: str) -> ConfigError:
    return ConfigError(
        f"{what_happened}: {type(env.unwrapped).__name__} does not honor its seed, and the expert of "
        "data.dagger does not see what the model saw. Leave data.dagger out."
    )
