"""The distinct prompts of one rollout, and every response that the policy gave."""

import numpy as np

from lgym.rollout import Prompt, Response
from lgym.types import Policy, Turn


class PromptTable:
    """Numbers prompts in the order in which they come up, and holds the policy's responses and values.

    Args:
        policy: the policy that acts.
        keep_kv_cache: whether later prompts extend those that were acted on.
    """

    def __init__(self, policy: Policy, *, keep_kv_cache: bool = True) -> None:
        self._policy = policy
        self._keep_kv_cache = keep_kv_cache
        self._index: dict[Prompt, int] = {}
        # Numbers by identity: policies give one object for equal choices.
        self._responses: dict[int, int] = {}
        self.prompts: list[Prompt] = []
        self.responses: list[Response] = []
        self.values = np.zeros(0, dtype=np.float32)  # [U], NaN where not known

    def index(self, prompt: Prompt) -> int:
        """The prompt's number; a new one if it has not come up yet."""
        number = self._index.get(prompt)
        if number is None:
            number = self._index[prompt] = len(self.prompts)
            self.prompts.append(prompt)
        return number

    def act(self, prompt_index: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """The numbers of the responses to n numbered prompts: sampled, or without `rng` the likeliest."""
        prompts = [self.prompts[number] for number in prompt_index.tolist()]
        new = self.prompts[len(self.values) :]
        responses, values = self._policy.act(prompts, rng, keep_kv_cache=self._keep_kv_cache, bootstrap=new)
        self._extend_values()
        self.values[prompt_index] = values.float().numpy()
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

    def _number(self, response: Response) -> int:
        number = self._responses.setdefault(id(response), len(self.responses))
        if number == len(self.responses):
            self.responses.append(response)
        return number

    def _extend_values(self) -> None:
        self.values = np.pad(self.values, (0, len(self.prompts) - len(self.values)), constant_values=np.nan)
