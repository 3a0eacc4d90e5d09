"""One environment at play, and the way to bring it back to where it stands."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.rollout.action_reader import ActionReader, Penalty
from lgym.envs.workers import (
    BrokenEnvironmentError,
    EnvironmentRaisedError,
    LocalEnv,
    WorkerEnv,
    WorkerLostError,
)
from lgym.memory import RememberedTurn
from lgym.rollout import Prompt, Response
from lgym.types import ConfigError

LOSSES = 3
"""Processes that one episode may lose in a row before the run ends."""


class EnvRunner:
    """Plays one episode after another in one environment. Every episode starts from a reset seed of its own,
    so seed and responses are all that has to be kept to play it again."""

    def __init__(self, env: gymnasium.Env | WorkerEnv, prompts: EpisodePrompts) -> None:
        """
        Args:
            env: the environment, in this process or in one of its own.
            prompts: of its observations.
        """
        self._env = env if isinstance(env, WorkerEnv) else LocalEnv(env)
        self._prompts = prompts
        self._reader = ActionReader(prompts.agent)
        self._penalty: Penalty | None = None  # of a turn that the environment does not see
        self._losses = 0  # processes that this episode has lost
        self.number = -1  # none yet
        self.seed = 0
        self.responses: list[Response] = []
        self.episode_return = 0.0
        self.episode_penalty = 0.0  # the agent's own part of that
        self.starting = False  # the first observation is not there yet
        self.live = False
        self.prompt: Prompt

    @property
    def history(self) -> int | str:
        """The number of earlier turns that a prompt shows."""
        return self._prompts.history

    @property
    def parsed(self) -> bool:
        """True if an action could be read from the last response."""
        return self._reader.parsed

    @property
    def turns(self) -> list[RememberedTurn]:
        """The turns of the episode so far, if there are memories."""
        return self._prompts.turns

    @property
    def system_prompt(self) -> str:
        return self._prompts.agent.system_prompt

    def reset(self, seed: int, *, number: int = 0) -> None:
        """Start the episode of that seed, as the run's episode of that number."""
        self.start(seed, number=number)
        self.ready()

    def start(self, seed: int, *, number: int = 0) -> None:
        """The first half of `reset`: an environment in a process of its own is left to it."""
        self._losses = 0
        self._begin(seed, number)

    def ready(self) -> None:
        """The second half of `reset`: wait for the first observation, after which the runner is `live`."""
        observation, info = self._receive()
        self.starting = False
        self.live = True
        self.prompt = self._prompts.observe(observation, info)

    def restart(self, lost: WorkerLostError) -> None:
        """Start the same episode anew in a new process, as `start`.

        Raises:
            BrokenEnvironmentError: if the episode has lost too many processes.
        """
        self._losses += 1
        if self._losses == LOSSES:
            raise BrokenEnvironmentError(
                f"{lost} That was {self._position()}, which has now lost {LOSSES} workers, one after the "
                "other. Play it without workers to see why (data.subprocess_envs: false), or give it more "
                "memory or a longer data.env_timeout."
            ) from lost
        assert isinstance(self._env, WorkerEnv)
        self._env.restart()
        self._begin(self.seed, self.number)

    def step(self, response: Response) -> tuple[float, bool, bool]:
        """Give the environment the action of a response, or the agent's fallback: reward, terminated,
        truncated.

        Afterwards `prompt` is about the observation that the action led to, also when the episode was
        truncated there.
        """
        self.send(response)
        return self.receive()

    def send(self, response: Response) -> None:
        """The first half of `step`: an environment in a process of its own is left to it."""
        self._prompts.respond(response)
        self.responses.append(response)
        self._penalty = self._reader.read(response, self._random_action)
        if self._penalty is None:
            self._env.send("step", self._reader.action)

    def receive(self) -> tuple[float, bool, bool]:
        """The second half of `step`.

        Raises:
            BrokenEnvironmentError: for an error of the environment.
            WorkerLostError: if its process is lost; then call `restart`.
        """
        truncated = False
        if self._penalty is not None:
            reward, terminated = self._penalty
            self.episode_penalty += reward
            self._remember(reward)
            if not terminated:
                self.prompt = self._prompts.repeat()
        else:
            observation, reward, terminated, truncated, info = self._receive()
            self._remember(reward)
            if not terminated:
                self.prompt = self._prompts.observe(observation, info)
        self.episode_return += float(reward)
        self.live = not (terminated or truncated)
        return float(reward), bool(terminated), bool(truncated)

    def _begin(self, seed: int, number: int) -> None:
        self.number = number
        self.seed = seed
        self.responses = []
        self.episode_return = 0.0
        self.episode_penalty = 0.0
        self.starting = True
        self.live = False
        self._reader.begin()
        self._prompts.begin()
        self._env.send("reset", seed=seed)

    def _remember(self, reward: float) -> None:
        self._prompts.remember(str(self.responses[-1].action_text), float(reward))

    def _random_action(self) -> Any:
        """An action sampled from the environment's space by the episode's seed and the turn: many
        environments of a class share one space, and an episode that is played again must sample the same."""
        seed = np.random.SeedSequence([self.seed, len(self.responses)]).generate_state(1)[0]
        try:
            self._env.send("action_space.seed", int(seed))
            self._receive()
            self._env.send("action_space.sample")
            return self._receive()
        except WorkerLostError:
            return None  # a lost process stays lost: `receive` raises

    def _receive(self) -> Any:
        try:
            return self._env.receive()
        except EnvironmentRaisedError as error:
            raise BrokenEnvironmentError(
                f"{self._env.name} raised {error.said}\nThat was {self._position()}. The fault is the "
                "environment's, or the agent's if that is no action for it."
            ) from error

    def _position(self) -> str:
        turn = (
            f"in turn {len(self.responses)}, action {self._reader.action!r},"
            if self.responses
            else "at the start"
        )
        return f"{turn} of the episode with reset seed {self.seed}"

    def state_dict(self) -> dict[str, Any] | None:
        """The episode so far as plain texts and numbers, or `None` between episodes."""
        if not self.live:
            return None
        return {
            "number": self.number,
            "seed": self.seed,
            "responses": [
                (list(r.history_ids), r.finished, r.text, r.choice, r.action_text) for r in self.responses
            ],
            **self._prompts.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Play the recorded responses again from the recorded seed; from the first once more, if that loses a
        process.

        Raises:
            BrokenEnvironmentError: if it loses too many.
            ValueError: if that does not lead back to the same observation.
        """
        self.live = False
        if state is None:
            return
        self.start(state["seed"], number=state["number"])
        while True:
            try:
                self._replay(state)
                break
            except WorkerLostError as lost:
                self.restart(lost)
        if not self.live or self._prompts.observation_text != state["observation_text"]:
            raise ConfigError(
                f"The environment {self._env.name} does not come back to where it stood when reset with seed "
                f"{state['seed']} and played the same {len(state['responses'])} answers: it was at "
                f"{state['observation_text']!r}. It does not honor its seed, so a run that stops in "
                "mid-episode cannot be resumed exactly. Set data.episodes_per_rollout instead of "
                "data.turns_per_rollout."
            )

    def _replay(self, state: dict[str, Any]) -> None:
        self._prompts.restore_memories(state)
        self.ready()
        for history_ids, finished, text, choice, action_text in state["responses"]:
            if not self.live:
                break
            self.step(
                Response(tuple(history_ids), (), finished, text, choice=choice, action_text=action_text)
            )

    def close(self) -> None:
        self._env.close()
