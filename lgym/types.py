"""Types that pass between the parts of lgym, in plain Python: nothing here imports torch.

Sizes, from small to large: token < turn (one observation and one answer) < episode < group < rollout.
"""

from collections.abc import Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict

DISCOUNTS = {"gamma": 0.99, "gae_lambda": 0.95}
"""Discounts where none are given, and random play decides no others: a reward counts for 100 turns."""


class LgymError(Exception):
    """Base class of the errors that lgym raises for its users: the message names the value and the way
    out."""


class ConfigError(LgymError, ValueError):
    """A setting, or a combination of settings, that lgym refuses."""


class Message(TypedDict):
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ParsedAction:
    """The environment's action read from a text. A failure to parse is data, not an exception.

    Attributes:
        action: the argument of `env.step`; `None` where `ok` is false.
        ok: True if the text named an action.
        reason: why not, where `ok` is false.
    """

    action: Any
    ok: bool = True
    reason: str = ""

    @classmethod
    def failure(cls, reason: str) -> "ParsedAction":
        return cls(action=None, ok=False, reason=reason)


@dataclass
class Turn:
    """One observation, the answer to it and what the environment paid for that.

    Attributes:
        value: the predicted return from here, before acting, in rewards; `None` without a critic.
        probabilities: the policy's probability of each candidate; empty for free text.
    """

    observation_text: str
    response_text: str
    reward: float
    value: float | None
    probabilities: dict[str, float] = field(default_factory=dict)


@dataclass
class Episode:
    """One played episode, as a person reads it.

    Attributes:
        seed: the seed of `env.reset`.
        final_observation_text: the observation that a truncated one ended at; else `None`.
    """

    seed: int
    system_prompt: str
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    final_observation_text: str | None = None

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of the episode's rewards."""
        return sum(turn.reward for turn in self.turns)


@dataclass(frozen=True)
class TokenTrace:
    """A turn as the policy saw it, token by token."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]  # T of the response
    action_mask: tuple[bool, ...]  # [T] 1 for the tokens that the policy chose
    logprobs: tuple[float, ...]  # [T] at rollout time
    advantages: tuple[float, ...]  # [T]


class Policy(Protocol):
    """The acting side of a policy, as the data side calls it.

    Attributes:
        generates_text: True if it writes free text, alone or before a choice.
        scores_candidates: True if it chooses between the agent's candidates.
    """

    generates_text: bool
    scores_candidates: bool

    @property
    def has_critic(self) -> bool:
        """True if it has state values; otherwise they are NaN."""

    def act(
        self, prompts: Sequence[Any], rng: Any, *, keep_kv_cache: bool = True, bootstrap: Sequence[Any] = ()
    ) -> tuple[list[Any], Any]:
        """Answer each prompt.

        Args:
            prompts: n `Prompt`s, equal ones among them or not.
            rng: NumPy's generator, the source of sampling; `None` takes the likeliest.
            keep_kv_cache: whether later prompts extend these, so that it pays to keep their keys and values.
            bootstrap: other prompts whose values will be asked for next.

        Returns:
            n `Response`s, and [n] state values.
        """

    def values(self, prompts: Sequence[Any]) -> Any:
        """State values of prompts, [n]."""

    def prefetch(self, prompts: Sequence[Any]) -> None:
        """Compute ahead what can be known of prompts before they come up."""


class Learner(Protocol):
    """The learning side of a run, as the data side calls it."""

    policy: Any
    uses_replay: bool  # learns from transitions of earlier rollouts

    @property
    def open_settings(self) -> Set[str]:
        """Settings that random play decides, of gamma, gae_lambda, demonstrations and replay."""

    @property
    def sft_rollouts(self) -> int:
        """Rollouts at the start that learn from turns to imitate alone."""

    @property
    def needs_whole_episodes(self) -> bool:
        """True if a rollout must not end within an episode."""

    @property
    def single_pass(self) -> bool:
        """True if it learns from a rollout once."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, with a chat template."""

    @property
    def context_length(self) -> int:
        """The longest prompt that the policy takes, in tokens."""

    def uses_sft(self, rollouts: int) -> bool:
        """True if demonstrated turns are learned from in a rollout behind so many; 0 tells it of any."""

    def sft_epochs(self, minibatches: int, update_epochs: int) -> int:
        """Passes over the turns to imitate in a rollout that learns from them alone.

        Args:
            minibatches: of a pass.
            update_epochs: passes over a rollout.
        """

    def behavior(self, rollouts: int) -> AbstractContextManager[Any]:
        """The `Policy` as it plays in training, likewise: it may explore, the less the more rollouts it has
        played before."""

    def inference(self) -> AbstractContextManager[Any]:
        """The `Policy` as it acts, in a context: no gradients, no dropout, the trainer's precision, weights
        that stay."""

    def prepare(self, rollout: Any) -> tuple[Any, dict[str, float]]:
        """A `Rollout` as a `ResponseBatch` to learn from, and its metrics."""
