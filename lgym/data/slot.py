"""One environment in play, and what it takes to bring it back to where it stands."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.batch import Context
from lgym.data.chat import ContextBuilder
from lgym.data.conversation import Conversation, History
from lgym.data.questions import action_of, candidates_of
from lgym.data.recall import Recall
from lgym.envs.workers import (
    BrokenEnvironmentError,
    EnvironmentRaisedError,
    LocalEnv,
    WorkerEnv,
    WorkerLostError,
)
from lgym.memory import PlayedTurn
from lgym.types import ConfigError, Episode, Said, Turn

LOSSES = 3
"""Workers that one episode may lose in a row before the run ends."""


class Slot:
    """Plays one episode after another in one environment. Every episode starts from a reset seed of its own, so seed
    and answers are all that has to be kept to play it again."""

    def __init__(
        self,
        env: gymnasium.Env | WorkerEnv,
        agent: TextAgent,
        builder: ContextBuilder,
        *,
        chooses: bool = True,
        history: History = 0,
        recall: Recall | None = None,
    ) -> None:
        """
        Args:
            env: the environment, in this process or in a worker.
            agent: its words.
            builder: makes prompts of them.
            chooses: whether answers are candidates of the agent's; otherwise they are free text, and some name no action.
            history: how many earlier turns of the episode a prompt shows.
            recall: what memories add to the observations; `None` adds nothing.
        """
        self._env = env if isinstance(env, WorkerEnv) else LocalEnv(env)
        self._agent = agent
        self._builder = builder
        self._chooses = chooses
        self.history: History = history
        self._conversation = Conversation(builder, history)
        self._recall = recall or Recall(agent)
        self._observed = ""  # the observation in hand, without what memories add
        self._action: Any = None  # the last one
        self._unread = 0  # answers in a row that named no action
        self._unstepped: tuple[float, bool, bool] | None = None  # what a turn came to that the environment never saw
        self._losses = 0  # workers that this episode has lost
        self.parsed = True
        self.number = 0
        self.seed = 0
        self.answers: list[Said] = []
        self.episode_return = 0.0
        self.episode_penalty = 0.0  # what of that is the agent's own
        self.starting = False  # the first observation is not there yet
        self.live = False
        self.transcript: Episode | None = None
        self.context: Context

    def reset(self, seed: int, *, number: int = 0, keep_transcript: bool = False) -> None:
        """Starts the episode of that seed, as the run's episode of that number."""
        self.start(seed, number=number, keep_transcript=keep_transcript)
        self.ready()

    def start(self, seed: int, *, number: int = 0, keep_transcript: bool = False) -> None:
        """The first half of `reset`: in a worker, the environment is left to it."""
        self._losses = 0
        self._begin(seed, number, keep_transcript)

    def ready(self) -> None:
        """The second half of `reset`: waits for the first observation, after which the slot is `live`."""
        observation, info = self._receive()
        self.starting, self.live = False, True
        self._observe(observation, info)

    def restart(self, lost: WorkerLostError) -> None:
        """Starts the same episode anew in a new worker, as `start`.

        Raises:
            BrokenEnvironmentError: if the episode has lost too many workers.
        """
        self._losses += 1
        if self._losses == LOSSES:
            raise BrokenEnvironmentError(
                f"{lost} That was {self._stands()}, which has now lost {LOSSES} workers, one after the other. Play it "
                "without workers to see why (data.workers: false), or give it more memory or a longer data.worker_timeout."
            ) from lost
        assert isinstance(self._env, WorkerEnv)
        self._env.restart()
        self._begin(self.seed, self.number, self.transcript is not None)

    def step(self, said: Said) -> tuple[float, bool, bool]:
        """Gives the environment the action that the answer names, or the agent's fallback: reward, terminated, truncated.

        Afterwards `context` is about the observation that the action led to, also when the episode was truncated there,
        and `parsed` says whether the answer named an action.
        """
        self.send(said)
        return self.receive()

    def send(self, said: Said) -> None:
        """The first half of `step`: in a worker, the environment is left to it."""
        self._conversation.reply(said)
        self.answers.append(said)
        self._unstepped = self._decide(said.answer)
        if self._unstepped is None:
            self._env.send("step", self._action)

    def receive(self) -> tuple[float, bool, bool]:
        """The second half of `step`.

        Raises:
            BrokenEnvironmentError: for what the environment raised; `WorkerLostError`, after which `restart` has to come.
        """
        if self._unstepped is not None:
            reward, terminated, truncated = self._unstepped
            self.episode_penalty += reward
            self._played(reward)
            if not terminated:
                self._ask(self._observed, ())
        else:
            observation, reward, terminated, truncated, info = self._receive()
            self._played(reward)
            if not terminated:
                self._observe(observation, info)
        self.episode_return += float(reward)
        self.live = not (terminated or truncated)
        return float(reward), bool(terminated), bool(truncated)

    def _begin(self, seed: int, number: int, keep_transcript: bool) -> None:
        self._action, self._unread = None, 0
        self.number = number
        self.seed = seed
        self.answers = []
        self._conversation = Conversation(self._builder, self.history)
        self._recall.begin()
        self.episode_return = self.episode_penalty = 0.0
        self.starting, self.live = True, False
        self.transcript = Episode(seed, self._agent.system_prompt) if keep_transcript else None
        self._env.send("reset", seed=seed)

    def _decide(self, answer: str) -> tuple[float, bool, bool] | None:
        """Settles on the next action, or on what the turn comes to where the environment is not to see it."""
        agent = self._agent
        if self._chooses:
            self._action = action_of(agent, answer)
            return None
        parsed = agent.parse(answer)
        self.parsed = parsed.ok
        self._unread = 0 if parsed.ok else self._unread + 1
        if parsed.ok:
            self._action = parsed.action
        elif agent.fallback == "penalize":
            return agent.penalty, self._unread >= agent.patience, False  # over: what would come is no value to bootstrap on
        elif agent.fallback == "end_episode":
            return agent.penalty, True, False
        elif agent.fallback == "default":
            self._action = agent.default_action
        elif agent.fallback == "random" or self._action is None:
            self._action = self._any_action()
        return None

    def _any_action(self) -> Any:
        """Drawn from the environment's action space by the episode's seed and the turn: many environments of a class share
        one space, and an episode that is played again must draw the same."""
        seed = np.random.SeedSequence([self.seed, len(self.answers)]).generate_state(1)[0]
        try:
            self._env.send("action_space.seed", int(seed))
            self._receive()
            self._env.send("action_space.sample")
            return self._receive()
        except WorkerLostError:
            return None  # a lost worker stays lost: `receive` tells

    def _receive(self) -> Any:
        try:
            return self._env.receive()
        except EnvironmentRaisedError as error:
            raise BrokenEnvironmentError(
                f"{self._env.name} raised {error.said}\nThat was {self._stands()}. The fault is the environment's, or the "
                "agent's if that is no action for it."
            ) from error

    def _stands(self) -> str:
        turn = f"in turn {len(self.answers)}, action {self._action!r}," if self.answers else "at the start"
        return f"{turn} of the episode with reset seed {self.seed}"

    @property
    def turns(self) -> list[PlayedTurn]:
        """Those of the episode so far, if there are memories; another list than that of the next episode."""
        return self._recall.turns

    def record(self, turn: Turn, terminated: bool, truncated: bool) -> None:
        """Adds a turn to the transcript, if this episode has one."""
        if self.transcript is not None:
            self.transcript.turns.append(turn)
            self.transcript.terminated, self.transcript.truncated = terminated, truncated

    def state_dict(self) -> dict[str, Any] | None:
        """Where the environment stands, or `None` between episodes."""
        if not self.live:
            return None
        return {
            "number": self.number,
            "seed": self.seed,
            "answers": [(said.answer, said.text, list(said.ids), said.ended) for said in self.answers],
            "observation_text": self._observed,
            **self._recall.state_dict(self.history),
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Plays the recorded answers again from the recorded seed; from the first once more, if that loses a worker.

        Raises:
            BrokenEnvironmentError: if it loses too many.
            ValueError: if that does not lead back to the same observation.
        """
        self.live = False
        if state is None:
            return
        self.start(state["seed"], number=state.get("number", 0))
        while True:
            try:
                self._replay(state)
                break
            except WorkerLostError as lost:
                self.restart(lost)
        if not self.live or self._observed != state["observation_text"]:
            raise ConfigError(
                f"The environment {self._env.name} does not come back to where it stood when reset with seed "
                f"{state['seed']} and played the same {len(state['answers'])} answers: it was at "
                f"{state['observation_text']!r}. It does not honour its seed, so a run that stops in mid-episode cannot "
                "be resumed exactly. Set data.episodes_per_rollout instead of data.turns_per_rollout."
            )

    def _replay(self, state: dict[str, Any]) -> None:
        """From the start of the episode."""
        self._recall.bring_back(state.get("shown", ()))
        self.ready()
        for answer, text, ids, ended in state["answers"]:
            if not self.live:
                break
            self.step(Said(answer, text, tuple(ids), ended))

    def close(self) -> None:
        self._env.close()

    def _observe(self, observation: Any, info: dict[str, Any]) -> None:
        text = self._agent.format_observation(observation)
        self._ask(text, candidates_of(self._agent, observation, info) if self._chooses else ())

    def _ask(self, observation_text: str, candidates: tuple[str, ...]) -> None:
        self._observed = observation_text
        self.context = self._conversation.context(self._recall.read(observation_text), candidates)

    def _played(self, reward: float) -> None:
        self._recall.add(PlayedTurn(self._observed, self.answers[-1].answer, float(reward)))
