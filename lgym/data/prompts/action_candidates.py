"""Candidates of an agent, checked before the model sees them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lgym.agents.base import TextAgent
from lgym.types import ConfigError


def candidates_of(agent: TextAgent, observation: Any, info: Mapping[str, Any]) -> tuple[str, ...]:
    """The agent's candidates for an observation.

    Raises:
        ValueError: if there are none, or one of them is twice in the list.
    """
    candidates = offered(agent, observation, info)
    if candidates is None:
        raise _no_candidates(agent, observation)
    return candidates


def offered(agent: TextAgent, observation: Any, info: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The agent's candidates as `candidates_of`, or `None` where the agent leaves the model to answer in free
    text."""
    name = type(agent).__name__
    candidates = agent.candidates(observation, info)
    if candidates is None:
        return None
    if len(candidates) == 0:
        raise _no_candidates(agent, observation)
    if isinstance(candidates, str):
        raise ConfigError(
            f"{name}.candidates returned the text {candidates!r}; it must return a list of texts."
        )
    repeated = sorted(text for text, count in Counter(candidates).items() if count > 1)
    if repeated:
        raise ConfigError(
            f"{name} offers the candidates {repeated} more than once for the observation {observation!r}."
        )
    return tuple(candidates)


def action_of(agent: TextAgent, text: str) -> Any:
    """The environment's action for a candidate's text.

    Raises:
        ValueError: if the agent cannot parse its own candidate.
    """
    parsed = agent.parse(text)
    if not parsed.ok:
        raise ConfigError(
            f"{type(agent).__name__} offers the candidate {text!r}, but its extract_action does not "
            f"understand it: {parsed.reason or 'no reason given'}. Every candidate must be an action."
        )
    return parsed.action


def candidate_of(agent: TextAgent, action: Any, candidates: Iterable[str]) -> str | None:
    """The first candidate that names an action of the environment; `None` if none does."""
    return next((text for text in candidates if np.array_equal(agent.parse(text).action, action)), None)


def candidate_number(agent: TextAgent, text: str, candidates: Sequence[str]) -> int | None:
    """The position of the candidate that a text is, or else whose action it names; `None` if there is
    none."""
    if text in candidates:
        return candidates.index(text)
    candidate = candidate_of(agent, agent.parse(text).action, candidates)
    return None if candidate is None else candidates.index(candidate)


def _no_candidates(agent: TextAgent, observation: Any) -> ConfigError:
    return ConfigError(
        f"{type(agent).__name__} offers no candidates for the observation {observation!r}, and the candidate "
        "policy chooses between candidates. Set its class attribute `actions`, or return them from "
        "`candidates(observation, info)`."
    )
