"""A policy whose calls are timed, and the small rollouts that it plays."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from lgym.policies import LLMPolicy
from lgym.rollout import Prompt


class Call(NamedTuple):
    """A call of the policy: how many prompts it computed, seconds, and the prompts that were new to it."""

    prompts: int
    seconds: float
    new: tuple[Prompt, ...] = ()


class Piece(NamedTuple):
    """A small rollout: turns, calls of the policy, and seconds."""

    turns: int
    calls: list[Call]
    seconds: float


class TimedPolicy:
    """A policy whose calls are timed.

    A prompt counts at every turn if the policy generates text, and else when it comes up for the first time.

    Args:
        policy: the policy that acts.
    """

    def __init__(self, policy: LLMPolicy) -> None:
        self._policy = policy
        self._known: set[Prompt] = set()
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def act(
        self, prompts: Sequence[Prompt], rng: Any, *, bootstrap: Sequence[Prompt] = (), **how: Any
    ) -> Any:
        """See `LLMPolicy`."""
        started = time.perf_counter()
        answered = self._policy.act(prompts, rng, bootstrap=bootstrap, **how)
        seconds = time.perf_counter() - started
        new = dict.fromkeys(p for p in (*bootstrap, *prompts) if p not in self._known)
        self._known.update(new)
        computed = len(prompts) if self._policy.generates_text else len(new)
        self.calls.append(Call(computed, seconds, tuple(new)))
        return answered
