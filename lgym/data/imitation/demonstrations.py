"""Demonstrations as text, and those from a JSON Lines file."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import gymnasium

from lgym.agents.base import TextAgent
from lgym.data.prompts.action_candidates import candidate_of
from lgym.types import ConfigError

OBSERVATION_KEYS = ("observation", "observation_text", "prompt", "input", "question", "state")
RESPONSE_KEYS = ("response", "response_text", "completion", "output", "answer", "action", "label")

Record = TypeVar("Record")


@dataclass(frozen=True)
class Demonstration:
    """One turn to imitate. Two are equal where both texts and the candidates are.

    Attributes:
        observation_text: the agent's text of the observation.
        response_text: without an end-of-turn token.
        candidates: the candidates of the choice; empty where unknown, and where there was no choice.
        response_ids: the tokens that a model sampled as this response; empty where it came as text.
        begins: whether no turn of its episode comes before it; otherwise `data.history` and
            `data.working_memory` show those that do.
        reward: what the environment paid for the response, or for that which was played in its place; 0 where
            unknown.
        played_text: the response that was played in its place, which `data.history` and
            `data.working_memory` show later; empty where the response itself was played.
    """

    observation_text: str
    response_text: str
    candidates: tuple[str, ...] = ()
    response_ids: tuple[int, ...] = field(default=(), compare=False)
    begins: bool = field(default=True, compare=False)
    reward: float = field(default=0.0, compare=False)
    played_text: str = field(default="", compare=False)

    @classmethod
    def restored(cls, values: Iterable[Any]) -> "Demonstration":
        """That of a checkpoint's values, in which tuples may have become lists."""
        read: list[Any] = [tuple(value) if isinstance(value, list) else value for value in values]
        return cls(*read)


class DemonstrationSource(Protocol):
    """A source of demonstrations. Unannotated on purpose: a YAML then takes any class that has the method."""

    def demonstrations(self, agent: Any, make_env: Any) -> Any:
        """A list of `Demonstration` in the words of a `TextAgent`, for the environments that `make_env()`
        makes."""


class JsonlDemonstrations:
    """Demonstrations from a JSON Lines file, one JSON object per line, each one of:

    - an observation and a response, by default under the first of these keys that is there: observation,
      observation_text, prompt, input, question, state; response, response_text, completion, output, answer,
      action, label. An observation that is no text is formatted by the agent; a response that is none is an
      action, and gets the agent's name for it;
    - a chat, {"messages": [{"role": "user", "content": ...}, {"role": "assistant", ...}]}: each assistant
      message answers the user message before it, and nothing else of the chat is used;
    - an episode as `lgym predict` writes it, {"turns": [...]}, without the turns whose answer names no
      action; `data.history` shows its earlier turns, as in play.

    Args:
        path: the file, UTF-8.
        observation_key: the key of the observation; null looks for a well-known one.
        response_key: the key of the response; null looks for a well-known one.
        min_return: the lowest return of an episode that is kept (filtered behavior cloning); null keeps all.
    """

    def __init__(
        self,
        path: str,
        observation_key: str | None = None,
        response_key: str | None = None,
        min_return: float | None = None,
    ) -> None:
        self.path = path
        self.min_return = min_return
        self.observation_key = observation_key
        self.response_key = response_key

    def demonstrations(self, agent: TextAgent, make_env: Callable[[], gymnasium.Env]) -> list[Demonstration]:
        """The demonstrations of all lines. Raises `ValueError` with the line that cannot be used."""
        parts = json_lines(self.path, lambda record: list(self._read(record, agent)))
        demonstrations = [demonstration for part in parts for demonstration in part]
        if not demonstrations:
            kept = "" if self.min_return is None else f" that returned {self.min_return:g} or more"
            raise ConfigError(f"{self.path} holds no demonstrations{kept}; write one JSON object per line.")
        return demonstrations

    def _read(self, record: Any, agent: TextAgent) -> Iterator[Demonstration]:
        require_object(record)
        any_form = self.observation_key is None and self.response_key is None
        if self.min_return is not None and _return_of(record) < self.min_return:
            return
        if any_form and isinstance(record.get("turns"), list):
            turns = [_recorded(turn, agent) for turn in record["turns"]]
            readable = (turn for turn in turns if agent.parse(turn.response_text).ok)
            yield from (replace(turn, begins=number == 0) for number, turn in enumerate(readable))
        elif any_form and isinstance(record.get("messages"), list):
            yield from (checked(agent, *pair) for pair in _exchanges(record["messages"]))
        else:
            keys = self.observation_key, self.response_key
            yield checked(agent, *observation_and_response(record, agent, *keys))


def json_lines(path: str, read: Callable[[Any], Record]) -> list[Record]:
    """The JSON objects of a file's lines, as `read` takes them; blank lines are left out.

    Raises:
        ConfigError: if there is no such file, or of a line with which `read`, or JSON, is at odds.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path} is not a file; a relative path starts from {Path.cwd()}.")
    records: list[Record] = []
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                records += [read(json.loads(line))] if line.strip() else []
            except ValueError as error:
                begin = line[:80].decode(errors="replace").strip()
                raise ConfigError(f"{path}, line {number}: {error}. It begins: {begin}") from error
    return records


def observation_and_response(
    record: Any, agent: TextAgent, observation_key: str | None = None, response_key: str | None = None
) -> tuple[str, str]:
    """The texts of a turn's observation and response, under these keys or well-known ones."""
    require_object(record)
    observation = _find(record, observation_key, OBSERVATION_KEYS, "observation")
    response = _find(record, response_key, RESPONSE_KEYS, "response")
    if not isinstance(observation, str):
        try:
            observation = agent.format_observation(observation)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ConfigError(
                f"{type(agent).__name__}.format_observation cannot read {observation!r} ({error}); give text"
            ) from error
    return observation, response_text(agent, response, agent.actions)


def recorded_candidates(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The candidates of a turn: `candidates`, a list of texts, or the keys of `probabilities`; empty where it
    has neither."""
    candidates = record.get("candidates") or list(record.get("probabilities") or ())
    if not isinstance(candidates, list) or not all(isinstance(text, str) for text in candidates):
        raise ConfigError(f"'candidates' is {candidates!r}; it must be a list of texts")
    return tuple(candidates)


def recorded_reward(record: Mapping[str, Any]) -> float:
    """The reward of a turn. Raises `ConfigError` where it is no finite number."""
    reward = record.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ConfigError(f"'reward' is {record.get('reward', 'missing')!r}; it must be a finite number")
    return float(reward)


def require_object(record: Any) -> None:
    """Raise `ConfigError` unless a line's JSON is an object."""
    if not isinstance(record, dict):
        raise ConfigError(f"expected a JSON object, not {record!r}")


def _recorded(record: Any, agent: TextAgent) -> Demonstration:
    """A turn of an episode as `lgym predict` writes it; the reward may be missing."""
    texts = observation_and_response(record, agent)
    reward = recorded_reward(record) if "reward" in record else 0.0
    return Demonstration(*texts, recorded_candidates(record), reward=reward)


def _return_of(record: Mapping[str, Any]) -> float:
    try:
        return float(sum(turn["reward"] for turn in record["turns"]))
    except (KeyError, TypeError) as error:
        raise ConfigError(
            "min_return asks for the rewards of its turns, and they are not all there; leave min_return out"
        ) from error


def _find(record: Mapping[str, Any], key: str | None, well_known: Sequence[str], part: str) -> Any:
    for name in well_known if key is None else (key,):
        if name in record:
            return record[name]
    looked_for = f"one of {', '.join(well_known)}" if key is None else repr(key)
    raise ConfigError(
        f"there is no {part}: no {looked_for} among its keys {sorted(record)}; set {part}_key to one of them"
    )


def _exchanges(messages: Iterable[Any]) -> Iterator[tuple[str, str]]:
    question: Any = None
    for message in messages:
        require_object(message)
        role, content = message.get("role"), message.get("content", "")
        if role not in ("user", "assistant"):
            continue
        if not isinstance(content, str):
            raise ConfigError(
                f"a message of the {role} has the content {content!r}; only text can be learned from"
            )
        if role == "user":
            question = content
        elif question is None:
            raise ConfigError(f"no user message comes before the assistant's {content!r}")
        else:
            yield question, content


def response_text(agent: TextAgent, answer: Any, candidates: Sequence[str]) -> str:
    """The text of an answer, which may be an action. Raises `ConfigError` for one that nothing names."""
    response = answer if isinstance(answer, str) else candidate_of(agent, answer, candidates)
    if response is None:
        offered = ", ".join(map(repr, candidates)) or "no candidates"
        raise ConfigError(
            f"{answer!r} is not text, nor the action of what {type(agent).__name__} offers ({offered})"
        )
    return response


def checked(
    agent: TextAgent, observation: str, response: str, candidates: tuple[str, ...] = ()
) -> Demonstration:
    """A demonstration that the agent can read. Raises `ConfigError` where it reads no action."""
    parsed = agent.parse(response)
    if not parsed.ok:
        raise ConfigError(
            f"{type(agent).__name__} reads no action from {response!r}: {parsed.reason or 'no reason given'}"
        )
    return Demonstration(observation, response, candidates)
