"""What passes between the parts of lgym, in plain Python: nothing here imports torch.

Sizes, from small to large: token < turn (one observation and one answer) < episode < group < rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypedDict


class LgymError(Exception):
    """Base class of the errors that lgym raises for its users: the message names the value and the way out."""


class ConfigError(LgymError, ValueError):
    """A setting, or a combination of settings, that lgym refuses."""


class Message(TypedDict):
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ParsedAction:
    """The environment's action read from a text. A failure to parse is data, not an exception."""

    action: Any
    """What goes to `env.step`; `None` where `ok` is false."""

    ok: bool = True
    """Whether the text named an action."""

    reason: str = ""
    """Why not, where `ok` is false."""

    @classmethod
    def failure(cls, reason: str) -> ParsedAction:
        return cls(action=None, ok=False, reason=reason)


class Said(NamedTuple):
    """What the policy said in one turn."""

    answer: str
    """What the agent reads an action from: the whole text, or the candidate that was chosen."""

    text: str
    """The whole text, as it stands in the conversation."""

    ids: tuple[int, ...]
    """Its tokens, a stop token included."""

    ended: bool
    """Whether it ended by itself, with a stop token or text."""


@dataclass
class Turn:
    """One observation, the answer to it and what the environment paid for that."""

    observation_text: str
    response_text: str
    reward: float
    value: float | None
    """The learner's estimate of the return still to come, before acting, in rewards; `None` where it learns none."""

    probabilities: dict[str, float] = field(default_factory=dict)
    """The policy's probability of each candidate; empty where it spoke freely."""


@dataclass
class Episode:
    """One played episode, as a person reads it."""

    seed: int
    """What `env.reset` was given."""

    system_prompt: str
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of the episode's rewards."""
        return sum(turn.reward for turn in self.turns)


@dataclass(frozen=True)
class TaughtTurn:
    """A turn with what its tokens learn, to look at."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]  # T of them
    mask: tuple[bool, ...]  # which the policy chose
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]


class Policy(Protocol):
    """What the data side asks of a policy that chooses between candidates."""

    speaks: bool
    """Whether it writes free text (`SpeakingPolicy`)."""

    chooses: bool
    """Whether it chooses between the agent's candidates."""

    has_critic: bool
    """Whether it has state values; else they are NaN."""

    def evaluate(self, contexts: Sequence[Any], *, going_on: Sequence[Any] = ()) -> tuple[Any, Any]:
        """Log-probabilities [U, C] of each context's candidates, padded with -inf, and state values [U]. Later contexts go
        on from those in `going_on`, so that it pays to keep what they are made of."""
        ...


class SpeakingPolicy(Protocol):
    """What the data side asks of a policy that speaks freely, or speaks and then chooses."""

    speaks: bool
    chooses: bool
    has_critic: bool

    def reply(self, contexts: Sequence[Any], seed: int | None, *, going_on: bool = True) -> tuple[list[Any], Any]:
        """A `Reply` to each context, equal ones or not, and state values [len(contexts)]; without a seed the likeliest.
        `going_on` says whether later contexts go on from these replies, so that it pays to keep what they are made of."""
        ...

    def values(self, contexts: Sequence[Any]) -> Any:
        """State values [U]."""
        ...


class Learner(Protocol):
    """What the data side asks of whoever learns from a rollout."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, with a chat template."""
        ...

    @property
    def context_length(self) -> int:
        """The longest prompt that the policy takes, in tokens."""
        ...

    @property
    def speaks(self) -> bool:
        """Whether the policy writes free text."""
        ...

    @property
    def chooses(self) -> bool:
        """Whether the policy chooses between the agent's candidates, if it speaks then afterwards."""
        ...

    @property
    def imitates(self) -> bool:
        """Whether turns are imitated in any rollout."""
        ...

    sft_rollouts: int
    """Rollouts at the start in which nothing but demonstrations is learned."""

    def acting(self) -> AbstractContextManager[Any]:
        """Within, the `Policy` or `SpeakingPolicy` is as it acts: no gradients, no dropout, the trainer's precision."""
        ...

    def prepare(self, rollout: Any) -> Any:
        """From what happened to what to learn from it: a `Rollout` to a `TurnBatch` or `ReplyBatch`."""
        ...
