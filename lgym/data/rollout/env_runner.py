"""One environment at play, and the way to bring it back to where it stands."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from lgym.data.prompts.action_candidates import action_of
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.rollout.exploration_bonus import text_digest
from lgym.envs.workers import (
    BrokenEnvironmentError,
    EnvironmentRaisedError,
    LocalEnv,
    WorkerEnv,
    WorkerLostError,
)
from lgym.phases import part
from lgym.rollout import Prompt, Response
from lgym.types import ConfigError, Turn

LOSSES = 3
"""Processes that one episode may lose in a row before the run ends."""


SUCCESS_KEYS = ("success", "is_success")
"""Keys of an environment's info that tell whether an episode has succeeded: Meta-World's, and that of
Gymnasium-Robotics and Stable-Baselines3."""


def success_of(info: Mapping[str, Any], before: float | None) -> float | None:
    """The success that a step's info tells, 1 or 0; what was known `before` where it tells none."""
    for key in SUCCESS_KEYS:
        value = info.get(key)
        if isinstance(value, bool | int | float | np.generic | np.ndarray) and np.size(value) == 1:
            return float(bool(np.all(value)))
    return before


class EnvRunner:
    """Plays one episode after another in one environment. Every episode starts from a reset seed of its own,
    so seed and responses are all that has to be kept to play it again.

    Args:
        env: the environment, in this process or in one of its own.
        prompts: of its observations.
        success_return: the return from which an episode is a success; `None` takes the environment's word.

    Attributes:
        transcript: the episode's turns as a person reads them, where whoever plays adds them.
    """

    def __init__(
        self,
        env: gymnasium.Env | WorkerEnv,
        prompts: EpisodePrompts,
        success_return: float | None = None,
    ) -> None:
        self._env = env if isinstance(env, WorkerEnv) else LocalEnv(env)
        self.prompts = prompts
        self._success_return = success_return
        self.starting = False  # the first observation is not there yet
        self.live = False
        self.prompt: Prompt

    def reset(self, seed: int, *, number: int = 0) -> None:
        """Start the episode of that seed, as the run's episode of that number."""
        self.start(seed, number=number)
        self.ready()

    def start(self, seed: int, *, number: int = 0, losses: int = 0) -> None:
        """The first half of `reset`: an environment in a process of its own is left to it. The episode may
        have lost some of those before."""
        self.number = number
        self.seed = seed
        self.responses: list[Response] = []
        self.transcript: list[Turn] = []
        self.action: Any = None  # the last one
        self.parsed = True  # whether it could be read from the last response
        self.episode_return = 0.0
        self.episode_penalty = 0.0  # the agent's own part of that
        self._success: float | None = None  # the environment's last word on it
        self.starting = True
        self.live = False
        self.first_visit = 0  # digest of the observation at hand, if the episode had not been there
        self._visited: set[int] = set()
        self._unread = 0  # responses in a row without an action
        self._losses = losses
        self.prompts.begin()
        self._env.send("reset", seed=seed)

    def ready(self) -> None:
        """The second half of `reset`: wait for the first observation, after which the runner is `live`."""
        observation, info = self._receive()
        self.starting = False
        self.live = True
        self.prompt = self.prompts.observe(observation, info)
        self._visit()

    def restart(self, lost: WorkerLostError) -> None:
        """Start the same episode anew in a new process, as `start`.

        Raises:
            BrokenEnvironmentError: if the episode has lost too many processes.
        """
        losses = self._losses + 1
        if losses == LOSSES:
            raise BrokenEnvironmentError(
                f"{lost} That was {self._position()}, which has now lost {LOSSES} workers, one after the "
                "other. Play it without workers to see why (data.subprocess_envs: false), or give it more "
                "memory or a longer data.env_timeout."
            ) from lost
        assert isinstance(self._env, WorkerEnv)
        self._env.restart()
        self.start(self.seed, number=self.number, losses=losses)

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
        self.responses.append(response)
        self._penalty = self._read(response)
        if self._penalty is None:
            self._env.send("step", self.action)

    def receive(self) -> tuple[float, bool, bool]:
        """The second half of `step`.

        Raises:
            BrokenEnvironmentError: for an error of the environment.
            WorkerLostError: if its process is lost; then call `restart`.
        """
        truncated = False
        if self._penalty is None:
            observation, reward, terminated, truncated, info = self._receive()
            self._success = success_of(info, self._success)
        else:
            reward, terminated = self._penalty
            self.episode_penalty += reward
        self.prompts.respond(self.responses[-1], float(reward))
        self.first_visit = 0
        if not terminated:
            if self._penalty is None:
                self.prompt = self.prompts.observe(observation, info, truncated)
            else:
                self.prompt = self.prompts.prompt()
            self._visit()
        self.episode_return += float(reward)
        self.live = not (terminated or truncated)
        return float(reward), bool(terminated), bool(truncated)

    @property
    def outcome(self) -> tuple[float, int, float, float | None]:
        """Return, length, penalty and success of the episode so far."""
        success = self._success
        if self._success_return is not None:
            success = float(self.episode_return >= self._success_return)
        return self.episode_return, len(self.responses), self.episode_penalty, success

    def _read(self, response: Response) -> tuple[float, bool] | None:
        """Set `action` and `parsed`; the reward of a turn that the agent's fallback keeps from the
        environment, and whether it terminates the episode."""
        agent = self.prompts.agent
        if response.choice >= 0:
            self.action = action_of(agent, str(response.action_text))
            return None
        parsed = agent.parse(str(response.action_text))
        self.parsed = parsed.ok
        self._unread = 0 if parsed.ok else self._unread + 1
        if parsed.ok:
            self.action = parsed.action
        elif agent.fallback == "penalize":
            # Out of patience is over: what would come is no value to bootstrap on.
            return agent.penalty, self._unread >= agent.patience
        elif agent.fallback == "end_episode":
            return agent.penalty, True
        elif agent.fallback == "default":
            self.action = agent.default_action
        elif agent.fallback == "random" or self.action is None:
            self.action = self._random_action()
        return None

    def _visit(self) -> None:
        digest = text_digest(self.prompts.observation_text)
        self.first_visit = 0 if digest in self._visited else digest
        self._visited.add(digest)

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
            with part("environments"):
                return self._env.receive()
        except EnvironmentRaisedError as error:
            raise BrokenEnvironmentError(
                f"{self._env.name} raised {error.said}\nThat was {self._position()}. The fault is the "
                "environment's, or the agent's if that is no action for it."
            ) from error

    def _position(self) -> str:
        turn = f"in turn {len(self.responses)}, action {self.action!r}," if self.responses else "at the start"
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
            "transcript": [dict(vars(turn)) for turn in self.transcript],
            **self.prompts.state_dict(),
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
        self.transcript = [Turn(**turn) for turn in state.get("transcript", ())]
        if not self.live or self.prompts.observation_text != state["observation_text"]:
            raise ConfigError(
                f"The environment {self._env.name} does not come back to where it stood when reset with seed "
                f"{state['seed']} and played the same {len(state['responses'])} answers: it was at "
                f"{state['observation_text']!r}. It does not honor its seed, so a run that stops in "
                "mid-episode cannot be resumed exactly. Set data.episodes_per_rollout instead of "
                "data.turns_per_rollout."
            )

    def _replay(self, state: dict[str, Any]) -> None:
        self.prompts.restore_memories(state)
        self.ready()
        for history_ids, finished, text, choice, action_text in state["responses"]:
            if not self.live:
                break
            self.step(
                Response(tuple(history_ids), (), finished, text, choice=choice, action_text=action_text)
            )

    def close(self) -> None:
        self._env.close()
