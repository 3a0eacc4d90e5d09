"""An agent for any environment, made from its spaces."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from reprlib import repr as short
from typing import Any, NamedTuple

import gymnasium

from lgym.agents.actions import ActionVocabulary, action_vocabulary
from lgym.agents.base import Fallback, TextAgent
from lgym.agents.known_spaces import known_space
from lgym.agents.observation_formatter import ObservationFormatter
from lgym.agents.observation_settings import ObservationSettings
from lgym.agents.parsing import last_match, pattern_fault, read_action
from lgym.agents.resolution import choose_resolutions
from lgym.types import ConfigError, ParsedAction


class _Bound(NamedTuple):
    vocabulary: ActionVocabulary
    formatter: ObservationFormatter
    task: str
    answer_format: str
    agent: TextAgent | None  # that lgym has for the environment


class GeneralAgent(TextAgent):
    """The agent of an environment that has none of its own: numbers with names, and a list of actions.

    Of well-known environments it knows the goal, the names and words for the numbers; what is set wins. Up to
    `max_candidates` actions are candidates; of more, and of texts, the model has to answer in free text.
    docs/environments.md tells which spaces have a text form.

    Args:
        task: the beginning of the system prompt; null names the environment. The form of the answer is added.
        actions: names of a `Discrete` space's actions; of `MultiDiscrete` and `MultiBinary` a list of them
            for each part. Null takes numbers.
        names: names of the parts of a vector or tuple; of several, by the label of each, such as {robot: [x,
            y]}.
        decimals: of numbers that are not whole; or by label, such as {robot x: 3}. Negative ones are tens and
            so on. Null takes a hundredth of the range.
        units: by label, such as {robot x: m}.
        resolution: the step that numbers are rounded to, such as 0.05; or by label. Few distinct texts make
            few distinct prompts, and learning fast.
        words: true says numbers in words for their sign and size, such as far left; or by label, true or the
            words from those for the smallest numbers to those for the largest.
        scale: the size from which a number in words is far or fast, by label; null takes half of its bound.
        parts: labels of the parts that are shown, in their order; null shows all.
        drop: labels of the parts that are left out.
        action_mask: the key of `info` with the mask of legal actions, as Gymnasium's Taxi has it. Null offers
            all.
        commands: the key of `info` with the texts that the game takes now, where an action is any text, as
            TextWorld has it: they are the candidates. Null leaves the model to answer in free text.
        max_candidates: the largest number of actions that are offered as candidates.
        pattern: the regular expression that finds the action in free text, see `TextAgent`. Where any text is
            an action, one that it does not match is none.
        fallback: the action where free text names none, see `TextAgent`.
    """

    def __init__(
        self,
        task: str | None = None,
        actions: list[str] | list[list[str]] | None = None,
        names: list[str] | dict[str, list[str]] | None = None,
        decimals: int | dict[str, int] | None = None,
        units: dict[str, str] | None = None,
        resolution: float | dict[str, float] | None = None,
        words: bool | dict[str, bool | list[str]] | None = None,
        scale: float | dict[str, float] | None = None,
        parts: list[str] | None = None,
        drop: list[str] | None = None,
        action_mask: str | None = "action_mask",
        commands: str | None = "admissible_commands",
        max_candidates: int = 100,
        pattern: str | None = None,
        fallback: Fallback = "penalize",
    ) -> None:
        if max_candidates < 1:
            raise ConfigError(f"max_candidates is {max_candidates}; it must be 1 or more.")
        if pattern is not None and (fault := pattern_fault(pattern)) is not None:
            raise ConfigError(f"pattern is {pattern!r}: {fault}.")
        self.task = task
        self.observation_settings = ObservationSettings(
            names, decimals, units, resolution, words, scale, parts, drop
        )
        self.action_mask = action_mask
        self.commands = commands
        self.max_candidates = max_candidates
        self.pattern = pattern
        self.fallback = fallback
        self._action_names = actions
        self._bound: _Bound | None = None

    def bind(self, env: gymnasium.Env) -> None:
        """Read the spaces. Raises `ValueError` for those that have no text form, and for names that do not
        fit."""
        known = known_space(env)
        agent = known.bound_agent(env)
        names = known.actions if self._action_names is None else self._action_names
        vocabulary = action_vocabulary(env, names)
        env_name = env.spec.name if env.spec is not None else type(env.unwrapped).__name__
        task = (self.task or known.task or f"You play {env_name}.").rstrip()
        self._bound = _Bound(
            vocabulary,
            known.formatter(env.observation_space, self.observation_settings, agent),
            task,
            known.answer_format or vocabulary.answer_format,
            agent,
        )
        is_list = vocabulary.count is not None and vocabulary.count <= self.max_candidates
        self.actions = vocabulary.texts() if is_list else ()

    def given_settings(self) -> dict[str, Any]:
        """The arguments of this agent, without `task`, that are not as by default."""
        given = vars(self.observation_settings) | {"actions": self._action_names}
        defaults = {name: p.default for name, p in inspect.signature(GeneralAgent).parameters.items()}
        values = {name: given.get(name, getattr(self, name, None)) for name in defaults if name != "task"}
        return {name: value for name, value in values.items() if value != defaults[name]}

    @property
    def system_prompt(self) -> str:
        bound = self._require_bound()
        return f"{bound.task} {bound.answer_format}"

    @property
    def task_text(self) -> str:
        """The beginning of the system prompt: `task`, or what is known of the environment."""
        return self._require_bound().task

    def format_observation(self, observation: Any) -> str:
        return self._require_bound().formatter(observation)

    def candidates(self, observation: Any, info: Mapping[str, Any]) -> Sequence[str] | None:
        """The actions that the mask allows, all of them where it allows none; or the commands of `info`."""
        if self._require_bound().vocabulary.count is None:
            return self._commands(observation, info)
        mask = info.get(self.action_mask) if self.action_mask is not None else None
        if mask is None or not self.actions:
            return self.actions or None
        allowed = self._require_bound().vocabulary.allowed(mask)
        if len(allowed) != len(self.actions):
            raise ConfigError(
                f"info[{self.action_mask!r}] is {mask!r}, which does not fit the environment's "
                f"{len(self.actions)} actions. Set the agent's action_mask: null to leave it aside."
            )
        return list(compress(self.actions, allowed)) or self.actions

    def _commands(self, observation: Any, info: Mapping[str, Any]) -> Sequence[str] | None:
        agent = self._require_bound().agent
        if self.commands is None or not info.get(self.commands):
            return None
        if agent is not None:
            return agent.candidates(observation, info)
        return sorted({str(command).strip() for command in info[self.commands]})

    def parse(self, text: str) -> ParsedAction:
        # A candidate, of which the pattern may find a part; or JSON for the game, of which an action is one
        if text in self.actions or self._is_tool_call(text):
            return self.extract_action(text)
        return read_action(
            text, partial(self._parse_part, whole=text), json_key=self.json_key, pattern=self.pattern
        )

    def _is_tool_call(self, text: str) -> bool:
        takes_texts = self._require_bound().vocabulary.count is None
        if not takes_texts or self.pattern is not None or not text.lstrip().startswith("{"):
            return False
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and found.keys() != {self.json_key}

    def _parse_part(self, part: str, whole: str) -> ParsedAction:
        takes_texts = self._require_bound().vocabulary.count is None
        if takes_texts and part == whole and self.pattern and last_match(whole, self.pattern) is None:
            return ParsedAction.failure(f"{short(whole)} has no match of the pattern {self.pattern!r}")
        return self.extract_action(part)

    def extract_action(self, text: str) -> ParsedAction:
        return self._require_bound().vocabulary.parse(text)

    def reference_returns(self) -> dict[str, float]:
        """Reference returns of the agent that lgym has for the environment, if it has one."""
        agent = self._require_bound().agent
        return {} if agent is None else agent.reference_returns()

    def choose_resolutions(self, observations: Sequence[Any], max_texts: int) -> dict[str, float]:
        """Steps by label to set as `resolution`, with which observations have at most so many texts.

        Empty where that is so without any, where `resolution` or `decimals` are set, and where words are
        used for the numbers. See `lgym.agents.resolution.choose_resolutions`.
        """
        formatter = self._require_bound().formatter
        if formatter.settings.resolution is not None or formatter.settings.decimals is not None:
            return {}
        return choose_resolutions(formatter, observations, max_texts)

    def resolve(self, resolution: dict[str, float]) -> None:
        """Round numbers to these steps, by label; of a bound agent, and of what it is bound to next."""
        bound = self._require_bound()
        settings = replace(bound.formatter.settings, resolution=resolution)
        formatter = ObservationFormatter(bound.formatter.space, settings, bound.formatter.readers)
        self.observation_settings = replace(self.observation_settings, resolution=resolution)
        self._bound = bound._replace(formatter=formatter)

    def why_no_candidates(self) -> str:
        """The reason that there are no candidates, for an error message."""
        count = self._require_bound().vocabulary.count
        if count is None:
            return "its actions are texts"
        return f"it has {count:,} actions, more than max_candidates ({self.max_candidates})"

    def _require_bound(self) -> _Bound:
        if self._bound is None:
            raise ConfigError("GeneralAgent does not know its environment yet: call its bind(env) first.")
        return self._bound
