"""Collects a rollout: several environments in step, each distinct prompt put to the policy together."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from lgym.data.rollout.dynamic_sampling import DynamicSampling
from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.rollout.recorder import EpisodeCounts, Outcome, PromptTable, Recorder
from lgym.envs.workers import WorkerLostError
from lgym.memory import RememberedTurn
from lgym.phases import part
from lgym.rollout import Prompt, Rollout
from lgym.types import ConfigError, Episode, Policy


@dataclass(frozen=True)
class PlayProgress:
    """Progress of a rollout or an evaluation.

    Attributes:
        done: episodes that have ended, or turns that have been played where these are counted.
        total: how many there will be.
        greedy: whether the likeliest actions are played, and not sampled ones.
        episodes: how many have ended.
        return_sum: sum of their returns.
    """

    done: int
    total: int
    greedy: bool
    episodes: int
    return_sum: float


Progress = Callable[[PlayProgress], None]
"""Called after every step of the environments."""

Remember = Callable[[list[list[RememberedTurn]]], None]
"""Called at the end of a rollout with the turns of every episode that ended in it, in the order of their
numbers."""


@dataclass(eq=False)
class Collector:
    """Keeps the environments of one stage and counts their episodes.

    Episode k of a collector is reset with seed `first_seed + k // group_size`, whichever runner plays it.
    Environments in workers play at the same time: all are sent what they have to do before any is waited for.

    Args:
        runners: the environments.
        first_seed: reset seed of the first episode.
        kept_transcripts: of how many episodes that end in a rollout to keep the text, of the first as many
            environments.
        group_size: how many episodes in a row start from the same seed.
        remember: what keeps a rollout's episodes in mind; `None` forgets them.
        dynamic_sampling_groups: how many groups a rollout of episodes has more at most, for as many
            without signal.
        prefetched: prompts that the policy computes ahead in one batch.
    """

    runners: Sequence[EnvRunner]
    first_seed: int
    kept_transcripts: int = 0
    group_size: int = 1
    remember: Remember | None = None
    dynamic_sampling_groups: int = 0
    prefetched: Callable[[], Sequence[Prompt]] = tuple

    def __post_init__(self) -> None:
        self._episodes_started = 0
        self._seeds_before = 0  # beyond one a group, where the run began with groups of another size
        self.counts = EpisodeCounts()
        self._latest: list[Outcome | None] = [None] * len(self.runners)  # finished in each environment
        self._finished: dict[int, Episode] = {}  # in a rollout, by number, where the text is kept
        self.transcripts: list[Episode] = []

    def play(
        self,
        policy: Policy,
        rng: np.random.Generator | None,
        *,
        episodes: int | None = None,
        turns: int | None = None,
        progress: Progress = lambda so_far: None,
    ) -> Rollout:
        """Plays so many whole episodes, or so many turns wherever episodes then stand.

        Args:
            policy: its weights stay the same while this plays.
            rng: what actions are sampled with; `None` plays greedily.
            episodes: episodes to start and to finish.
            turns: turns to play over all environments, a multiple of their number; episodes go on in the next
                rollout.
            progress: called after every step of the environments.
        """
        has_history = any(runner.prompts.history != 0 for runner in self.runners)
        table = PromptTable(policy, keep_kv_cache=has_history)
        recorder = Recorder(table, len(self.runners), self.counts, self._latest)
        if prompts := self.prefetched():
            with part("policy"):
                policy.prefetch(prompts)
        first = self._episodes_started
        self._last_episode = math.inf if episodes is None else first + episodes
        self._dynamic_sampling = DynamicSampling(self.group_size, self.dynamic_sampling_groups)
        self._finished = {}
        self._settle(recorder)
        while any(runner.live for runner in self.runners) and (turns is None or recorder.turns < turns):
            self._step(recorder, rng)
            ended = len(recorder.finished)
            done, total = (recorder.turns, turns or 0) if episodes is None else (ended, episodes)
            progress(PlayProgress(done, total, rng is None, ended, recorder.return_sum))
        rollout = recorder.rollout()
        if episodes is not None:  # whole ones: these are the episodes to report
            rollout = replace(rollout, latest_episodes=None)
        numbers = sorted(self._finished)[: self.kept_transcripts]
        self.transcripts = [self._finished[number] for number in numbers]
        if self.remember is not None:
            self.remember([turns for _, turns in sorted(recorder.remembered.items())])
        return rollout

    def _step(self, recorder: Recorder, rng: np.random.Generator | None) -> None:
        """One turn in each of the playing environments."""
        table = recorder.table
        playing = [i for i, runner in enumerate(self.runners) if runner.live]
        prompt_index = np.array([table.index(self.runners[i].prompt) for i in playing])
        response_index = table.act(prompt_index, rng)
        for i, number in zip(playing, response_index.tolist(), strict=True):
            self.runners[i].send(table.responses[number])
        turns = []
        for i, asked, answer in zip(playing, prompt_index.tolist(), response_index.tolist(), strict=True):
            runner = self.runners[i]
            try:
                reward, terminated, truncated = runner.receive()
            except WorkerLostError as lost:
                self._drop(runner, recorder, lost)
                continue
            next_prompt = -1 if terminated else table.index(runner.prompt)
            ending = (terminated, truncated, runner.parsed, next_prompt, runner.first_visit)
            turns.append((i, asked, answer, runner.number, runner.seed, reward, *ending))
            if i < self.kept_transcripts:
                runner.transcript.append(table.turn(asked, answer, reward))
            if not runner.live:
                recorder.finish(i, runner)
                self._keep_transcript(runner, terminated, truncated)
                self._last_episode += self._dynamic_sampling.ended(runner.number, runner.episode_return)
                self._start(runner)
        recorder.add(turns)
        self._settle(recorder)

    def _keep_transcript(self, runner: EnvRunner, terminated: bool, truncated: bool) -> None:
        """Keep the text of the episode that has ended, if its turns are there from the first on."""
        if len(runner.transcript) == len(runner.responses):
            final = None if terminated else runner.prompt.observation_text
            system_prompt = runner.prompts.agent.system_prompt
            ending = terminated, truncated, final
            self._finished[runner.number] = Episode(runner.seed, system_prompt, runner.transcript, *ending)

    def _start(self, runner: EnvRunner) -> None:
        """Start the next episode in the runner, unless the rollout has had all of its episodes."""
        if self._episodes_started < self._last_episode:
            seed = self.first_seed + self._seeds_before + self._episodes_started // self.group_size
            runner.start(seed, number=self._episodes_started)
            self._episodes_started += 1
            self.counts.played += 1

    def _settle(self, recorder: Recorder) -> None:
        """Start runners that had nothing left to play, before the rollout was refilled; then wait until every
        episode that has been started stands at its first observation."""
        for runner in self.runners:
            if not (runner.live or runner.starting):
                self._start(runner)
        for runner in self.runners:
            while runner.starting:
                try:
                    runner.ready()
                except WorkerLostError as lost:
                    self._drop(runner, recorder, lost)

    def _drop(self, runner: EnvRunner, recorder: Recorder, lost: WorkerLostError) -> None:
        """Drop the episode of a runner and start it anew: so every rollout has its episodes, and a group all
        of its."""
        warnings.warn(
            f"{lost} Episode {runner.number} is dropped and begun anew in another worker.", stacklevel=2
        )
        recorder.drop(runner.number)
        runner.restart(lost)
        self.counts.played += 1

    def state_dict(self) -> dict[str, Any]:
        """The episode of every environment, in plain numbers and texts."""
        return {
            "episodes_started": self._episodes_started,
            "group_size": self.group_size,
            "seeds_before": self._seeds_before,
            "counts": asdict(self.counts),
            "latest": list(self._latest),
            "runners": [runner.state_dict() for runner in self.runners],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Brings every environment back to where it stood.

        Raises:
            ValueError: if the number of environments has changed while episodes were under way.
        """
        runners = state["runners"]
        if len(runners) != len(self.runners):
            if any(runner is not None for runner in runners):
                raise ConfigError(
                    f"The checkpoint holds {len(runners)} environments in mid-episode and data.num_envs is "
                    f"{len(self.runners)}. Resume with data.num_envs: {len(runners)}."
                )
            runners = [None] * len(self.runners)
        started, group_size = state["episodes_started"], state.get("group_size", self.group_size)
        self._episodes_started = -(-started // self.group_size) * self.group_size  # whole groups
        # with groups of another size the next seed is still the one behind all that were played
        self._seeds_before = state.get("seeds_before", 0)
        self._seeds_before += -(-started // group_size) - self._episodes_started // self.group_size
        self.counts = EpisodeCounts(**state["counts"])
        if len(state["latest"]) == len(self.runners):
            self._latest = list(state["latest"])
        for runner, runner_state in zip(self.runners, runners, strict=True):
            runner.load_state_dict(runner_state)

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
