"""The distributions over candidates that a policy has computed while its weights stay the same."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lgym.rollout import Prompt, Response


class DistributionCache:
    """Log-probabilities of the candidates of U prompts, and their state values, computed once."""

    def __init__(self) -> None:
        self._index: dict[Prompt, int] = {}
        self._responses: dict[tuple[int, int], Response] = {}
        self.logprobs = np.zeros((0, 0), dtype=np.float32)  # [U, C], padded with -inf
        self.values = np.zeros(0, dtype=np.float32)  # [U]

    def missing(self, prompts: Iterable[Prompt]) -> list[Prompt]:
        """The distinct prompts that are not known."""
        return [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._index]

    def add(self, prompts: Sequence[Prompt], logprobs: Tensor, values: Tensor) -> None:
        """Take the [n, C] log-probabilities and [n] values of prompts; known ones stay as they are."""
        rows = []
        for row, prompt in enumerate(prompts):
            if prompt not in self._index:  # nor before in these prompts
                self._index[prompt] = len(self._index)
                rows.append(row)
        width = max(self.logprobs.shape[1], logprobs.shape[1])
        tables = (self.logprobs, logprobs[rows].float().numpy())
        self.logprobs = np.concatenate(
            [
                np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-np.inf)
                for table in tables
            ]
        )
        self.values = np.concatenate([self.values, values[rows].float().numpy()])

    def index(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """[n] rows of prompts in the tables."""
        return np.fromiter((self._index[prompt] for prompt in prompts), dtype=np.int64, count=len(prompts))

    def act(
        self, prompts: Sequence[Prompt], rng: np.random.Generator | None, epsilon: float = 0.0
    ) -> list[Response]:
        """A choice for each prompt: sampled, or without `rng` the likeliest.

        Args:
            prompts: those to answer.
            rng: the source of sampling.
            epsilon: share of the sampled choices that take any candidate, each as likely.
        """
        index = self.index(prompts)
        logprobs = self.logprobs[index]
        if rng is None:
            choices = logprobs.argmax(axis=1)
        else:
            cumulative = np.exp(logprobs.astype(np.float64)).cumsum(axis=1)
            thresholds = rng.random(len(prompts))[:, None] * cumulative[:, -1:]
            choices = (cumulative <= thresholds).sum(axis=1)
            if epsilon > 0:
                counts = np.array([len(prompt.candidates) for prompt in prompts])
                explores = rng.random(len(prompts)) < epsilon
                choices = np.where(explores, rng.integers(counts), choices)
        keys = zip(prompts, index.tolist(), choices.tolist(), strict=True)
        return [
            self._responses.get((row, choice)) or self._response(prompt, row, choice)
            for prompt, row, choice in keys
        ]

    def _response(self, prompt: Prompt, row: int, choice: int) -> Response:
        logprobs = tuple(self.logprobs[row, : len(prompt.candidates)].tolist())
        response = self._responses[row, choice] = choice_response(prompt, choice, logprobs)
        return response


def choice_response(prompt: Prompt, choice: int, candidate_logprobs: tuple[float, ...] = ()) -> Response:
    """The response that is one of the prompt's candidates; its decision falls at the candidate's first
    token."""
    token_ids = prompt.candidate_ids[choice]
    forced = len(token_ids) - 1
    return Response(
        token_ids=token_ids,
        logprobs=(candidate_logprobs[choice] if candidate_logprobs else 0.0, *(0.0,) * forced),
        finished=True,
        text=prompt.candidates[choice],
        action_mask=(True, *(False,) * forced),
        choice=choice,
        candidate_logprobs=candidate_logprobs,
    )


def weights_digest(module: nn.Module) -> bytes:
    """A digest of every bit that is trained: 10 ms for adapters of 2.4 million numbers. A norm would be
    quicker, and the same for a weight whose sign has turned."""
    digest = hashlib.blake2b(digest_size=16)
    for parameter in module.parameters():
        if parameter.requires_grad:
            digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
