"""A minibatch whose loss is not finite, kept to be looked into."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lgym import distributed
from lgym.batch import ResponseBatch
from lgym.plain_text import as_json
from lgym.types import LgymError


class NonFiniteLossError(LgymError, RuntimeError):
    """The loss is NaN or infinite; training cannot go on from here."""


def save_batch(
    folder: str | Path, batch: ResponseBatch, tokenizer: Any, metrics: Mapping[str, Tensor]
) -> Path:
    """Write a minibatch as JSON lines, a prompt per line with its turns, and the metrics in a last line."""
    name = (
        "non_finite_loss.jsonl"
        if distributed.world_size() == 1
        else f"non_finite_loss_{distributed.rank()}.jsonl"
    )
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    batch = batch.to("cpu")
    with path.open("w", encoding="utf-8") as file:
        for number, prompt in enumerate(batch.prompts):
            turns = (batch.prompt_index == number).nonzero().flatten()
            record: dict[str, Any] = {
                "prompt": tokenizer.decode(list(prompt.token_ids)),
                "candidates": prompt.candidates,
                "responses": [tokenizer.decode(list(batch.response_ids[turn])) for turn in turns.tolist()],
                "choices": batch.choices[turns].tolist(),
                "old_logprobs": batch.old_logprobs[turns].tolist(),
                "advantages": batch.advantages[turns].tolist(),
            }
            if batch.returns is not None:
                record["returns"] = batch.returns[turns].tolist()
            file.write(as_json(record) + "\n")
        file.write(as_json({name: float(value) for name, value in metrics.items()}) + "\n")
    return path
