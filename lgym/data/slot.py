"""One environment in play, and what it takes to bring it back to where it stands."""

from __future__ import annotations

from typing import Any

import gymnasium

from lgym.agents.base import TextAgent
from lgym.batch import Context
from lgym.data.chat import ContextBuilder
from lgym.data.conversation import Conversation, History
from lgym.data.questions import action_of, candidates_of
from lgym.types import Episode, Said, Turn


class Slot:
    """Plays one episode after another in one environment. Every episode starts from a reset seed of its own, so seed
    and answers are all that has to be kept to play it again."""

    def __init__(
        self,
        env: gymnasium.Env,
        agent: TextAgent,
        builder: ContextBuilder,
        *,
        chooses: bool = True,
        history: History = 0,
    ) -> None:
        """
        Args:
            env: the environment.
            agent: its words.
            builder: makes prompts of them.
            chooses: whether answers are candidates of the agent's; otherwise they are free text, and some name no action.
            history: how many earlier turns of the episode a prompt shows.
        """
        self._env = env
        self._agent = agent
        self._builder = builder
        self._chooses = chooses
        self._history: History = history
        self._conversation = Conversation(builder, history)
        self._action: Any = None  # the last one
        self._unread = 0  # answers in a row that named no action
        self.parsed = True
        self.number = 0
        self.seed = 0
        self.answers: list[Said] = []
        self.episode_return = 0.0
        self.live = False
        self.transcript: Episode | None = None
        self.context: Context

    def reset(self, seed: int, *, number: int = 0, keep_transcript: bool = False) -> None:
        """Starts the episode of that seed, as the run's episode of that number."""
        observation, info = self._env.reset(seed=seed)
        if not self._chooses:
            self._env.action_space.seed(seed)  # what a fallback draws from
        self._action, self._unread = None, 0
        self.number = number
        self.seed = seed
        self.answers = []
        self._conversation = Conversation(self._builder, self._history)
        self.episode_return = 0.0
        self.live = True
        self.transcript = Episode(seed, self._agent.system_prompt) if keep_transcript else None
        self._observe(observation, info)

    def step(self, said: Said) -> tuple[float, bool, bool]:
        """Gives the environment the action that the answer names, or the agent's fallback: reward, terminated, truncated.

        Afterwards `context` is about the observation that the action led to, also when the episode was truncated there,
        and `parsed` says whether the answer named an action.
        """
        self._conversation.reply(said)
        self.answers.append(said)
        reward, terminated, truncated = self._step(said.answer)
        self.episode_return += reward
        self.live = not (terminated or truncated)
        return reward, terminated, truncated

    def _step(self, answer: str) -> tuple[float, bool, bool]:
        agent = self._agent
        if not self._chooses:
            parsed = agent.parse(answer)
            self.parsed = parsed.ok
            self._unread = 0 if parsed.ok else self._unread + 1
            if parsed.ok:
                self._action = parsed.action
            elif agent.fallback == "penalize":
                self._ask(self.context.observation_text, ())
                return agent.penalty, False, self._unread >= agent.patience
            elif agent.fallback == "end_episode":
                return agent.penalty, True, False
            elif agent.fallback == "default":
                self._action = agent.default_action
            elif agent.fallback == "random" or self._action is None:
                self._action = self._env.action_space.sample()
        else:
            self._action = action_of(agent, answer)
        observation, reward, terminated, truncated, info = self._env.step(self._action)
        if not terminated:
            self._observe(observation, info)
        return float(reward), bool(terminated), bool(truncated)

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
            "observation_text": self.context.observation_text,
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Plays the recorded answers again from the recorded seed.

        Raises:
            ValueError: if that does not lead back to the same observation.
        """
        self.live = False
        if state is None:
            return
        self.reset(state["seed"], number=state.get("number", 0))
        for answer, text, ids, ended in state["answers"]:
            if not self.live:
                break
            self.step(Said(answer, text, tuple(ids), ended))
        if not self.live or self.context.observation_text != state["observation_text"]:
            raise ValueError(
                f"The environment {self._env.spec.id if self._env.spec else self._env} does not come back to where it "
                f"stood when reset with seed {state['seed']} and played the same {len(state['answers'])} answers: it was at "
                f"{state['observation_text']!r}. It does not honour its seed, so a run that stops in mid-episode cannot "
                "be resumed exactly. Set data.episodes_per_rollout instead of data.turns_per_rollout."
            )

    def close(self) -> None:
        self._env.close()

    def _observe(self, observation: Any, info: dict[str, Any]) -> None:
        text = self._agent.format_observation(observation)
        self._ask(text, candidates_of(self._agent, observation, info) if self._chooses else ())

    def _ask(self, observation_text: str, candidates: tuple[str, ...]) -> None:
        self.context = self._conversation.context(observation_text, candidates)
