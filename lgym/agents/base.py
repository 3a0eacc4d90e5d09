"""What a user writes to let a language model play: observations to text, and text back to actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium

from lgym.agents.parsing import named_action, pattern_fault, read_action
from lgym.memory.entries import Memory, RememberedTurn
from lgym.types import ParsedAction

Fallback = Literal["penalize", "random", "default", "repeat", "end_episode"]
FALLBACKS: tuple[str, ...] = get_args(Fallback)


class TextAgent(ABC):
    """The words of one environment. Holds no model and remembers nothing itself: the same observation always reads the same.

    An environment whose actions are a `Discrete` space needs a prompt, the actions' names and one method:

        class FrozenLakeAgent(TextAgent):
            system_prompt = "Cross the frozen lake to the goal. Answer left, down, right or up."
            actions = ("left", "down", "right", "up")  # in the order of the environment's numbers

            def format_observation(self, observation):
                row, column = divmod(int(observation), 4)
                return f"Row {row}, column {column}."

    Where the legal actions change from turn to turn, override `candidates`; where actions are not names, override
    `extract_action`; and with no `actions` at all the model speaks freely. What it says freely is read by `parse`: a JSON
    reply by its `json_key`, other forms by a `pattern`, and whatever else by `extract_action`. What memories add to an
    observation, if the run has any, is worded by `summarize` and `render_memory`.
    """

    actions: Sequence[str] = ()
    """The names of a `Discrete` space's actions, in the order of their numbers from 0; empty where not needed."""

    json_key: str | None = "action"
    """Where a reply in JSON, such as `{"action": "up"}`, has its action; `None` reads no JSON."""

    pattern: str | None = None
    """A regular expression for replies such as `Action: up`: of its last match the group named action, else the first
    group, else the whole is the action. It sees a reply's last 10,000 characters; one that backtracks without end is not
    stopped."""

    fallback: Fallback = "penalize"
    """What happens when no action can be read from what the model said:

    - penalize: the environment waits, the turn is paid `penalty`, and the same observation is shown again;
    - random: any action of the environment's action space; default: `default_action`; repeat: the action before (at the
      start of an episode, any);
    - end_episode: the turn is paid `penalty` and the episode is over."""

    penalty: float = -1.0
    """In units of the environment's rewards."""

    default_action: Any = None
    """For `fallback = "default"`."""

    patience: int = 5
    """With `penalize`, unread replies in a row after which the episode is over: terminated, not truncated, since a value for
    the penalties still to come would grow without bound."""

    @property
    @abstractmethod
    def system_prompt(self) -> str:
        """The rules and the form of the answer, said once an episode: a class attribute, or a property."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if callable(cls.__dict__.get("system_prompt")):
            raise TypeError(
                f"{cls.__name__}.system_prompt is a method: make it a string, or put @property above it"
            )
        if isinstance(cls.__dict__.get("actions"), str):
            raise TypeError(
                f"{cls.__name__}.actions is one string, {cls.actions!r}: make it a tuple of names"
            )
        if cls.pattern is not None and (fault := pattern_fault(cls.pattern)) is not None:
            raise TypeError(f"{cls.__name__}.pattern is {cls.pattern!r}: {fault}")
        if cls.fallback not in FALLBACKS:
            raise TypeError(
                f"{cls.__name__}.fallback is {cls.fallback!r}: choose one of {', '.join(FALLBACKS)}"
            )

    def bind(self, env: gymnasium.Env) -> None:  # noqa: B027 (most agents have nothing to do here)
        """Called once, before anything else, with an environment such as will be played: for agents that want to know its
        spaces or settings, which most do not. It is closed afterwards. By default does nothing."""

    @abstractmethod
    def format_observation(self, observation: Any) -> str:
        """What the model reads of an observation. Short, the varying words last: equal openings are computed once."""

    def candidates(self, observation: Any, info: Mapping[str, Any]) -> Sequence[str] | None:
        """The legal actions as texts, or `None`: the agent offers no candidates and the model speaks freely."""
        return self.actions or None

    def parse(self, text: str) -> ParsedAction:
        """The action that a free reply names, by its JSON, else the `pattern`, else `extract_action`, see `read_action`.

        JSON and pattern name an action by its name or number in `actions`; without `actions`, `extract_action` reads
        what they found. Raises only what `extract_action` raises.
        """
        return read_action(
            text, self.extract_action, actions=self.actions, json_key=self.json_key, pattern=self.pattern
        )

    def extract_action(self, text: str) -> ParsedAction:
        """The action a text names: by default its number in `actions`, whatever the case and the space around it.

        Raises `TypeError` where `actions` is empty, as there is then nothing to compare with.
        """
        if not self.actions:
            name = type(self).__name__
            raise TypeError(
                f"{name} has no `actions` to find {text!r} in: list them, or override `extract_action`"
            )
        number = named_action(text, self.actions)
        if number is not None:
            return ParsedAction(number)
        return ParsedAction.failure(f"{text!r} is none of {', '.join(self.actions)}")

    def summarize(self, turns: Sequence[RememberedTurn]) -> str:
        """What a memory keeps of some turns of one episode, the oldest first: by default a line each, of what was observed,
        answered and paid. Where rewards come only at the end, or answers say it all, leave the rest out."""
        return "\n".join(
            f"{' '.join(t.observation_text.split())} -> {t.answer} ({t.reward:+.3g})" for t in turns
        )

    def render_memory(self, observation_text: str, recent: str, similar: Sequence[Memory]) -> str:
        """What the model reads of an observation in a run with memories: by default these, above the observation.

        Args:
            observation_text: what `format_observation` made of it.
            recent: the summary of this episode's last turns (`data.working_memory`); empty if there is none.
            similar: what is remembered of earlier episodes (`data.episodic_memory`), the best first.
        """
        lines = [f"{memory.text}; return {memory.mean_return:+.3g}" for memory in similar]
        before = ["Earlier episodes:", *lines] if lines else []
        before += ["This episode:", recent] if recent else []
        return "\n".join([*before, "Now:", observation_text]) if before else observation_text

    def reference_returns(self) -> dict[str, float]:
        """Mean episode returns of policies known for this environment, such as 'random' and 'optimal'."""
        return {}
