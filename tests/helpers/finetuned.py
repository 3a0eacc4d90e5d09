"""A tiny model fine-tuned on the form of an answer, favoring none: as a small instruct model brings it
along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from helpers import tiny

OBSERVED = ((4, 21), (1, 10), (0, 1))
"""The ranges of Blackjack's three numbers."""


def finetuned(agent: Any, answers: Sequence[str], steps: int = 120) -> tuple[Any, Any]:
    """Fine-tune the tiny model for so many steps, each on four conversations about Blackjack with random
    answers.

    Returns:
        The model and its tokenizer.
    """
    model, tokenizer, rng = tiny.causal_lm(), tiny.tokenizer(), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        rows = [_conversation(agent, answers, tokenizer, rng) for _ in range(4)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row, _ in rows])
        answer_mask = torch.tensor([mask + [False] * (width - len(mask)) for _, mask in rows])
        logprobs = (
            model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        )
        optimizer.zero_grad()
        (-logprobs[answer_mask[:, 1:]].mean()).backward()
        optimizer.step()
    return model.eval(), tokenizer


def _conversation(
    agent: Any, answers: Sequence[str], tokenizer: Any, rng: np.random.Generator
) -> tuple[list, list]:
    """Tokens of one or two turns, and a mask that is 1 for answers."""
    messages = [{"role": "system", "content": agent.get_system_prompt()}]
    ids: list[int] = []
    mask: list[bool] = []
    for _ in range(rng.integers(1, 3)):
        observation = [int(rng.integers(low, high + 1)) for low, high in OBSERVED]
        messages.append({"role": "user", "content": agent.format_observation(observation)})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        new = tokenizer(text, add_special_tokens=False)["input_ids"][len(ids) :]
        answer = answers[rng.integers(len(answers))]
        answer_ids = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        messages.append({"role": "assistant", "content": answer})
        ids, mask = ids + new + answer_ids, mask + [False] * len(new) + [True] * len(answer_ids)
    return ids, mask
