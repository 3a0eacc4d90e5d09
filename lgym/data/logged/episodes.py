"""Episodes from JSON Lines files, checked line by line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lgym.agents.base import TextAgent
from lgym.data.imitation.demonstrations import (
    json_lines,
    observation_and_response,
    recorded_candidates,
    recorded_reward,
    require_object,
)
from lgym.data.prompts.action_candidates import candidate_number
from lgym.types import ConfigError


@dataclass(frozen=True)
class LoggedTurn:
    """An observation in the agent's words, a choice between candidates, and what was paid for it."""

    observation_text: str
    candidates: tuple[str, ...]
    choice: int
    reward: float


class FinalObservation(NamedTuple):
    """The observation that an episode was cut off at, and the candidates there."""

    text: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class LoggedEpisode:
    """The turns of an episode.

    Attributes:
        terminated: True if the environment ended it; else it was cut off.
        final: the observation that it was cut off at; `None` where it terminated.
    """

    turns: tuple[LoggedTurn, ...]
    terminated: bool
    final: FinalObservation | None = None

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
      episode without it loses that turn, whose own observation takes its place; so does one whose last
      candidates are not the agent's actions, since those of its final observation are not known.

    `lgym predict` writes such files, `transcripts.jsonl`; further keys are not read.

    Args:
        paths: the files, UTF-8.
        agent: whose words they are.

    Raises:
        ConfigError: with the file and the line that cannot be used, or if there is nothing to learn from.
    """
    episodes = [
        episode for path in paths for episode in json_lines(path, lambda record: _episode(record, agent))
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
    if record["terminated"]:
        return LoggedEpisode(tuple(turns), True)
    *earlier, last = turns
    if final is not None and last.candidates == tuple(agent.actions):
        return LoggedEpisode(tuple(turns), False, FinalObservation(final, last.candidates))
    return LoggedEpisode(tuple(earlier), False, FinalObservation(last.observation_text, last.candidates))


def _turn(record: Any, agent: TextAgent) -> LoggedTurn:
    observation, response = observation_and_response(record, agent)
    reward = recorded_reward(record)
    candidates = recorded_candidates(record) or tuple(agent.actions)
    choice = candidate_number(agent, response, candidates)
    if choice is None:
        offered = ", ".join(map(repr, candidates)) or "none"
        raise ConfigError(f"the response {response!r} is none of the candidates ({offered})")
    return LoggedTurn(observation, candidates, choice, reward)
