"""Prompts of the tiny tokenizer, and batches of the responses to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helpers import tiny
from lgym.batch import ResponseBatch
from lgym.rollout import Prompt, Response


def make_prompt(text: str, *candidates: str) -> Prompt:
    """A prompt of the rules and an observation, without a chat template."""
    encode = tiny.tokenizer().encode
    candidate_ids = tuple(tuple(encode(candidate)) for candidate in candidates)
    return Prompt(tuple(encode(f"Rules. {text}")), candidate_ids, candidates, text)


def response_batch(
    prompts: Sequence[Prompt], prompt_index: Sequence[int], responses: Sequence[Response]
) -> ResponseBatch:
    """Turns that answered the numbered prompts, with an advantage of 1 for each token that the policy
    chose."""
    width = max(len(response.token_ids) for response in responses)
    action_mask = torch.zeros(len(responses), width, dtype=torch.bool)
    for row, response in zip(action_mask, responses, strict=True):
        row[: len(response.action_mask)] = torch.tensor(response.action_mask)
    return ResponseBatch(
        prompts=tuple(prompts),
        prompt_chains=tuple((number,) for number in sorted(set(prompt_index))),
        prompt_index=torch.tensor(prompt_index),
        response_ids=tuple(response.token_ids for response in responses),
        choices=torch.tensor([response.choice for response in responses]),
        action_mask=action_mask,
        old_logprobs=torch.zeros(action_mask.shape),
        advantages=action_mask.float(),
        loss_scale=1.0 / len(responses),
    )
