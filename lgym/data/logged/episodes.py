"""Episodes from JSON Lines files, checked line by line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lgym.agents.base import TextAgent
from lgym.data.imitation.demonstrations import json_lines, observation_and_response, require_object
from lgym.data.prompts.action_candidates import candidate_number
from lgym.types import ConfigError


@dataclass(frozen=True)
class LoggedTurn:
    """An observation in the agent's words, a choice between candidates, and what was paid for it."""

    observation_text: str
    candidates: tuple[str, ...]
    choice: int
    reward: float


@dataclass(frozen=True)
class LoggedEpisode:
    """The turns of an episode.

    Attributes:
        terminated: True if the environment ended it; else it was cut off.
        final_observation_text: the observation that an episode was cut off at; `None` where it terminated.
    """

    turns: tuple[LoggedTurn, ...]
    terminated: bool
    final_observation_text: str | None = None

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return sum(turn.reward for turn in self.turns)


def read_episodes(paths: Sequence[str], agent: TextAgent) -> list[LoggedEpisode]:
    """The episodes of JSON Lines files, one JSON object per line:

    - `turns`: objects, each with an observation and a response, as `JsonlDemonstrations` reads them,
      `reward`, a number, and where an agent's candidates differ from observation to observation `candidates`,
      a list of texts, or `probabilities`, an object whose keys are these;
    - `terminated`: true if the environment ended it, and `truncated`: true if a time limit did;
    - `final_observation_text`: the observation behind the last turn of an episode that did not terminate. An
      episode without it loses that turn, whose own observation takes its place.

    `lgym predict` writes such files, `transcripts.jsonl`; further keys are not read.

    Args:
        paths: the files, UTF-8.
        agent: whose words they are.

    Raises:
        ConfigError: with the file and the line that cannot be used, or if there is nothing to learn from.
    """
    episodes = [
        _without_last_turn(episode)
        for path in paths
        for episode in json_lines(path, lambda record: _episode(record, agent))
    ]
    episodes = [episode for episode in episodes if episode.turns]
    if not episodes:
        raise ConfigError(f"{', '.join(paths)}: there is no turn to learn from.")
    return episodes


def _episode(record: Any, agent: TextAgent) -> LoggedEpisode:
    require_object(record)
    if not isinstance(record.get("turns"), list) or not record["turns"]:
        raise ConfigError(f"there is no list of turns among its keys {sorted(record)}")
    for name in ("terminated", "truncated"):
        if not isinstance(record.get(name), bool):
            raise ConfigError(f"{name!r} is {record.get(name, 'missing')!r}; it must be true or false")
    turns = []
    for number, turn in enumerate(record["turns"], start=1):
        try:
            turns.append(_turn(turn, agent))
        except ConfigError as error:
            raise ConfigError(f"turn {number}: {error}") from error
    final = record.get("final_observation_text")
    if final is not None and not isinstance(final, str):
        raise ConfigError(f"'final_observation_text' is {final!r}; it must be text")
    return LoggedEpisode(tuple(turns), record["terminated"], None if record["terminated"] else final)


def _turn(record: Any, agent: TextAgent) -> LoggedTurn:
    observation, response = observation_and_response(record, agent)
    reward = record.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ConfigError(f"'reward' is {record.get('reward', 'missing')!r}; it must be a finite number")
    candidates = record.get("candidates") or list(record.get("probabilities") or agent.actions)
    if not isinstance(candidates, list) or not all(isinstance(text, str) for text in candidates):
        raise ConfigError(f"'candidates' is {candidates!r}; it must be a list of texts")
    choice = candidate_number(agent, response, candidates)
    if choice is None:
        offered = ", ".join(map(repr, candidates)) or "none"
        raise ConfigError(f"the response {response!r} is none of the candidates ({offered})")
    return LoggedTurn(observation, tuple(candidates), choice, float(reward))


def _without_last_turn(episode: LoggedEpisode) -> LoggedEpisode:
    """An episode that was cut off at an unknown observation, up to the last known one."""
    if episode.terminated or episode.final_observation_text is not None:
        return episode
    return LoggedEpisode(episode.turns[:-1], False, episode.turns[-1].observation_text)
