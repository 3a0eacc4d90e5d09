"""The distinct prompts of one rollout, and every response that the policy gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lgym.rollout import Prompt, Response
from lgym.types import Policy, Turn


class PromptTable:
    """Numbers prompts in the order in which they come up, and holds the policy's responses and values."""

    def __init__(self, policy: Policy, *, keep_kv_cache: bool = True) -> None:
        """
        Args:
            policy: the policy that acts.
            keep_kv_cache: whether later prompts extend those that were acted on.
        """
        self._policy = policy
        self._keep_kv_cache = keep_kv_cache
        self._index: dict[Prompt, int] = {}
        self._responses: dict[
            int, int
        ] = {}  # numbers by identity: policies give one object for equal choices
        self._new: list[Prompt] = []
        self.prompts: list[Prompt] = []
        self.responses: list[Response] = []
        self.values = np.zeros(0, dtype=np.float32)  # [U], NaN where not known

    def index(self, prompt: Prompt) -> int:
        """The prompt's number; a new one if it has not come up yet."""
        number = self._index.get(prompt)
        if number is None:
            number = self._index[prompt] = len(self.prompts)
            self.prompts.append(prompt)
            self._new.append(prompt)
        return number

    def act(self, prompt_index: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """The numbers of the responses to n numbered prompts: sampled, or without `rng` the likeliest."""
        prompts = [self.prompts[number] for number in prompt_index.tolist()]
        responses, values = self._policy.act(
            prompts, rng, keep_kv_cache=self._keep_kv_cache, bootstrap=self._new
        )
        self._extend_values()
        self.values[prompt_index] = values.float().numpy()
        self._new = []
        return np.array([self._number(response) for response in responses])

    def complete(self) -> None:
        """Compute the values of the prompts that were not acted on, which bootstrap; without a critic they
        stay NaN."""
        self._extend_values()
        missing = np.isnan(self.values).nonzero()[0]
        if len(missing) and self._policy.has_critic:
            self.values[missing] = self._policy.values([self.prompts[n] for n in missing]).float().numpy()

    def turn(self, prompt_number: int, response_number: int, reward: float) -> Turn:
        """A turn as a person reads it."""
        prompt, response = self.prompts[prompt_number], self.responses[response_number]
        value = self.values[prompt_number]
        probabilities = np.exp(np.array(response.candidate_logprobs, dtype=np.float32)).tolist()
        return Turn(
            observation_text=prompt.observation_text,
            response_text=response.text,
            reward=reward,
            value=None if np.isnan(value) else float(value),
            probabilities=dict(zip(prompt.candidates, probabilities, strict=True)) if probabilities else {},
        )

    def record(self) -> dict[str, Any]:
        """The entries of a `Rollout`."""
        return {
            "prompts": tuple(self.prompts),
            "prompt_values": torch.from_numpy(self.values),
            "responses": tuple(self.responses),
        }

    def _number(self, response: Response) -> int:
        number = self._responses.setdefault(id(response), len(self.responses))
        if number == len(self.responses):
            self.responses.append(response)
        return number

    def _extend_values(self) -> None:
        self.values = np.pad(self.values, (0, len(self.prompts) - len(self.values)), constant_values=np.nan)
