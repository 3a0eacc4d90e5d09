"""`TextAgent`: the words of an environment, observations to text and text back to actions."""

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
    """The words of one environment. It holds no model and no state: the same observation always reads the
    same.

    An environment whose actions are a `Discrete` space needs a prompt, the actions' names and one method:

        class FrozenLakeAgent(TextAgent):
            system_prompt = "Cross the frozen lake to the goal. Answer left, down, right or up."
            actions = ("left", "down", "right", "up")  # in the order of the environment's numbers

            def format_observation(self, observation):
                row, column = divmod(int(observation), 4)
                return f"Row {row}, column {column}."

    Where the legal actions change from turn to turn, override `candidates`; where actions are not names,
    override `extract_action`, which returns the environment's action, or `None` where the text names none;
    with no `actions` at all the model answers in free text. Free text is read by `parse`: a JSON response by
    its `json_key`, other forms by a `pattern`, and whatever else by `extract_action`. The text of memories,
    if the run has any, is made by `summarize` and `render_memory`.

    Attributes:
        actions: the names of a `Discrete` space's actions, in the order of their numbers from 0; empty where
            not needed.
        json_key: the key of the action in a JSON response, such as `{"action": "up"}`; `None` reads no JSON.
        pattern: a regular expression for responses such as `Action: up`: of its last match the group named
            action, else the first group, else the whole is the action. It sees a response's last 10,000
            characters; one that backtracks without end is not stopped.
        fallback: the action where none can be parsed from the response:

            - penalize (the default): the environment waits, the reward is `penalty`, and the same observation
              is shown again;
            - random: any action of the environment's action space; default: `default_action`; repeat: the
              action before (at the start of an episode, any);
            - end_episode: the reward is `penalty` and the episode is over.
        penalty: in units of the environment's rewards, -1 by default.
        default_action: for `fallback = "default"`.
        patience: with `penalize`, the parse failures in a row after which the episode is over, 5 by default:
            terminated, not truncated, since a value for the penalties still to come would grow without bound.
    """

    actions: Sequence[str] = ()
    json_key: str | None = "action"
    pattern: str | None = None
    fallback: Fallback = "penalize"
    penalty: float = -1.0
    default_action: Any = None
    patience: int = 5

    @property
    @abstractmethod
    def system_prompt(self) -> str:
        """The rules and the form of the answer, said once per episode: a class attribute, or a property."""

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
        """Read the environment's spaces or settings, which most agents do not need. Called before anything
        else, and again where random play decides the time limit.

        Args:
            env: an environment such as will be played; it is closed afterwards.
        """

    @abstractmethod
    def format_observation(self, observation: Any) -> str:
        """Format an observation as text.

        Args:
            observation: from the environment's `reset` or `step`.

        Returns:
            A short text, the varying words last: equal openings are computed once.
        """

    def candidates(self, observation: Any, info: Mapping[str, Any]) -> Sequence[str] | None:
        """List the legal actions as texts.

        Args:
            observation: from the environment's `reset` or `step`.
            info: the info that came with it.

        Returns:
            The texts to choose from; `None` lets the model answer in free text. By default `actions`.
        """
        return self.actions or None

    def parse(self, text: str) -> ParsedAction:
        """Parse free text by its JSON, else by the `pattern`, else by `extract_action`, see `read_action`.

        JSON and pattern name an action by its name or number in `actions`; without `actions`,
        `extract_action` reads what they found.

        Args:
            text: the model's response.

        Returns:
            The action, or a failure with its reason. Raises only what `extract_action` raises.
        """
        return read_action(
            text, self.extract_action, actions=self.actions, json_key=self.json_key, pattern=self.pattern
        )

    def extract_action(self, text: str) -> Any:
        """Extract the action that a text names: by default its number in `actions`, ignoring case and outer
        space.

        Args:
            text: a candidate, or free text in which neither JSON nor the pattern found an action.

        Returns:
            The environment's action, `None` where the text names none, or a `ParsedAction`, which says why
            not.

        Raises:
            TypeError: if `actions` is empty, as there is then nothing to compare with.
        """
        if not self.actions:
            raise TypeError(
                f"{type(self).__name__} has no `actions` to find {text!r} in: list them, or override "
                "`extract_action`"
            )
        number = named_action(text, self.actions)
        if number is not None:
            return ParsedAction(number)
        return ParsedAction.failure(f"{text!r} is none of {', '.join(self.actions)}")

    def summarize(self, turns: Sequence[RememberedTurn]) -> str:
        """Summarize some turns of one episode for a memory.

        Args:
            turns: the turns, the oldest first.

        Returns:
            By default one line per turn: observation, answer and reward. Where rewards come only at the end,
            or answers say it all, leave the rest out.
        """
        return "\n".join(
            f"{' '.join(t.observation_text.split())} -> {t.answer} ({t.reward:+.3g})" for t in turns
        )

    def render_memory(self, observation_text: str, recent: str, similar: Sequence[Memory]) -> str:
        """Render an observation with the run's memories: by default these, above the observation.

        Args:
            observation_text: the text of `format_observation`.
            recent: the summary of this episode's last turns (`data.working_memory`); empty if there is none.
            similar: memories of earlier episodes (`data.episodic_memory`), the best first.

        Returns:
            The text that the model reads in place of the observation.
        """
        lines = [f"{memory.text}; return {memory.mean_return:+.3g}" for memory in similar]
        before = ["Earlier episodes:", *lines] if lines else []
        before += ["This episode:", recent] if recent else []
        return "\n".join([*before, "Now:", observation_text]) if before else observation_text

    def reference_returns(self) -> dict[str, float]:
        """Mean episode returns of known policies, such as 'random' and 'optimal', to print beside a run's
        result."""
        return {}
