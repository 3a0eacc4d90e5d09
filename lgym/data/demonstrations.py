"""Turns to imitate, as text: from a file, or played by a scripted expert."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
from tqdm import tqdm

from lgym.agents.base import TextAgent
from lgym.types import ConfigError, ParsedAction

OBSERVATION_KEYS = ("observation", "observation_text", "prompt", "input", "question", "state")
RESPONSE_KEYS = ("response", "response_text", "completion", "output", "answer", "action", "label")


@dataclass(frozen=True)
class Demonstration:
    """One turn to imitate. Two are equal where both texts are."""

    observation_text: str
    response_text: str
    """Without an end-of-turn token."""

    candidates: tuple[str, ...] = field(default=(), compare=False)
    """What the response was chosen from; empty where unknown, and where there was no choice."""

    response_ids: tuple[int, ...] = field(default=(), compare=False)
    """The tokens that a model sampled as this response; empty where it came as text."""


class DemonstrationSource(Protocol):
    """Where demonstrations come from. Unannotated on purpose: a YAML then takes any class that has the method."""

    def demonstrations(self, agent: Any, make_env: Any) -> Any:
        """A list of `Demonstration` in the words of a `TextAgent`, for the environments that `make_env()` makes."""


class ScriptedExpert(Protocol):
    """Plays by a rule."""

    def act(self, observation: Any, info: Any) -> Any:
        """The answer to what `reset` or `step` returned: a text, or an action of the environment."""


class JsonLines:
    """A JSON object a line, each one of:

    - an observation and a response, by default under the first of these keys that is there: observation, observation_text,
      prompt, input, question, state; response, response_text, completion, output, answer, action, label. An observation
      that is no text is formatted by the agent; a response that is none is an action, and gets the agent's name for it;
    - a chat, {"messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}]}: each assistant message answers
      the user message before it, and nothing else of the chat is used;
    - an episode as `lgym predict` writes it, {"turns": [...]}, without the turns whose answer names no action.
    """

    def __init__(self, path: str, observation_key: str | None = None, response_key: str | None = None) -> None:
        """
        Args:
            path: the file, UTF-8.
            observation_key: the key of the observation; null looks for a well-known one.
            response_key: the key of the response; null looks for a well-known one.
        """
        self.path, self.observation_key, self.response_key = path, observation_key, response_key

    def demonstrations(self, agent: TextAgent, make_env: Callable[[], gymnasium.Env]) -> list[Demonstration]:
        """Those of all lines. Raises `ValueError` with the line that cannot be used."""
        if not Path(self.path).is_file():
            raise ConfigError(f"{self.path} is not a file; a relative path starts from {Path.cwd()}.")
        found: list[Demonstration] = []
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    found += self._read(json.loads(line), agent) if line.strip() else ()
                except ValueError as error:
                    begin = line[:80].decode(errors="replace").strip()
                    raise ConfigError(f"{self.path}, line {number}: {error}. It begins: {begin}") from error
        if not found:
            raise ConfigError(f"{self.path} holds no demonstrations; write one JSON object a line.")
        return found

    def _read(self, record: Any, agent: TextAgent) -> Iterator[Demonstration]:
        record = _object(record)
        any_form = self.observation_key is None and self.response_key is None
        if any_form and isinstance(record.get("turns"), list):
            played = (_text_pair(agent, *self._pair(_object(turn))) for turn in record["turns"])
            yield from (Demonstration(*pair) for pair in played if _parsed(agent, pair[1]).ok)
        elif any_form and isinstance(record.get("messages"), list):
            yield from (_readable(agent, *pair) for pair in _exchanges(map(_object, record["messages"])))
        else:
            yield _readable(agent, *_text_pair(agent, *self._pair(record)))

    def _pair(self, record: Mapping[str, Any]) -> tuple[Any, Any]:
        observation = _find(record, self.observation_key, OBSERVATION_KEYS, "observation")
        return observation, _find(record, self.response_key, RESPONSE_KEYS, "response")


class Expert:
    """A scripted expert, played in the environment."""

    def __init__(
        self, policy: ScriptedExpert, episodes: int = 100, seed: int = 0, keep_return_at_least: float | None = None
    ) -> None:
        """
        Args:
            policy: the expert, by class_path: anything with `act(observation, info)`.
            episodes: how many it plays, one or more.
            seed: the reset seed of the first episode; the next are seed + 1, seed + 2 and so on.
            keep_return_at_least: the return from which on an episode is kept; null keeps all.
        """
        if episodes < 1:
            raise ConfigError(f"The expert's episodes are {episodes}; give 1 or more.")
        self.policy, self.episodes, self.seed, self.keep_return_at_least = policy, episodes, seed, keep_return_at_least

    def demonstrations(self, agent: TextAgent, make_env: Callable[[], gymnasium.Env]) -> list[Demonstration]:
        """Every turn of the kept episodes. Raises `ValueError` for an answer without an action, or if none is kept."""
        env = make_env()
        seeds = range(self.seed, self.seed + self.episodes)
        try:
            played = [self._play(env, agent, seed) for seed in tqdm(seeds, "expert episodes", leave=False, file=sys.stderr)]
        finally:
            env.close()
        least, best = self.keep_return_at_least, max(episode_return for episode_return, _ in played)
        if least is not None and best < least:
            raise ConfigError(
                f"None of the {self.episodes} episodes of {type(self.policy).__name__} returned {least:g} or more, the best "
                f"{best:g}. Lower keep_return_at_least, or raise episodes."
            )
        return [turn for episode_return, turns in played if least is None or episode_return >= least for turn in turns]

    def _play(self, env: gymnasium.Env, agent: TextAgent, seed: int) -> tuple[float, list[Demonstration]]:
        turns, episode_return, over = [], 0.0, False
        observation, info = env.reset(seed=seed)
        while not over:
            candidates = tuple(agent.candidates(observation, info) or ())
            answer = self.policy.act(observation, info)
            try:
                response = _named(agent, answer, candidates)
                turns.append(_readable(agent, agent.format_observation(observation), response, candidates))
            except ValueError as error:
                name = type(self.policy).__name__
                raise ConfigError(f"{name} answered {answer!r} to the observation {observation!r}: {error}") from error
            observation, reward, terminated, truncated, info = env.step(_parsed(agent, response).action)
            episode_return += float(reward)
            over = terminated or truncated
        return episode_return, turns


def _object(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ConfigError(f"expected a JSON object, not {record!r}")
    return record


def _find(record: Mapping[str, Any], key: str | None, well_known: Sequence[str], what: str) -> Any:
    for name in well_known if key is None else (key,):
        if name in record:
            return record[name]
    looked_for = f"one of {', '.join(well_known)}" if key is None else repr(key)
    raise ConfigError(f"there is no {what}: no {looked_for} among its keys {sorted(record)}; set {what}_key to one of them")


def _exchanges(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Each assistant message with the user message before it."""
    asked: Any = None
    for message in messages:
        role, content = message.get("role"), message.get("content", "")
        if role in ("user", "assistant") and not isinstance(content, str):
            raise ConfigError(f"a message of the {role} has the content {content!r}; only text can be learned from")
        if role == "user":
            asked = content
        elif role == "assistant" and asked is None:
            raise ConfigError(f"no user message comes before the assistant's {content!r}")
        elif role == "assistant":
            yield asked, content


def _text_pair(agent: TextAgent, observation: Any, response: Any) -> tuple[str, str]:
    if not isinstance(observation, str):
        try:
            observation = agent.format_observation(observation)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            name = type(agent).__name__
            raise ConfigError(f"{name}.format_observation cannot read {observation!r} ({error}); give text") from error
    return observation, _named(agent, response, agent.actions)


def _named(agent: TextAgent, answer: Any, candidates: Sequence[str]) -> str:
    """The answer, if it is text; else the candidate that is this action."""
    if isinstance(answer, str):
        return answer
    for candidate in candidates:
        if np.array_equal(_parsed(agent, candidate).action, answer):
            return candidate
    offered = ", ".join(map(repr, candidates)) or "no candidates"
    raise ConfigError(f"{answer!r} is not text, nor the action of what {type(agent).__name__} offers ({offered})")


def _readable(agent: TextAgent, observation: str, response: str, candidates: tuple[str, ...] = ()) -> Demonstration:
    parsed = _parsed(agent, response)
    if not parsed.ok:
        raise ConfigError(f"{type(agent).__name__} reads no action from {response!r}: {parsed.reason or 'no reason given'}")
    return Demonstration(observation, response, candidates)


def _parsed(agent: TextAgent, text: str) -> ParsedAction:
    return agent.parse(text)
