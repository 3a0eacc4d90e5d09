"""What is kept when a loss is not a number, so that it can be looked into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lgym.batch import ReplyBatch, TurnBatch


class NonFiniteLossError(RuntimeError):
    """The loss is NaN or infinite; training cannot go on from here."""


def save_batch(folder: str | Path, batch: TurnBatch | ReplyBatch, tokenizer: Any, metrics: dict[str, Tensor]) -> Path:
    """Writes a minibatch as JSON lines, a context a line with its turns, and the metrics in a last line."""
    path = Path(folder) / "non_finite_loss.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = batch.rows.cpu()
    with path.open("w", encoding="utf-8") as file:
        for u, context in enumerate(batch.contexts):
            turns = rows == u
            record = {
                "prompt": tokenizer.decode(list(context.prompt_ids)),
                "advantages": batch.advantages.cpu()[turns].tolist(),
            }
            if isinstance(batch, ReplyBatch):
                record["replies"] = [tokenizer.decode(list(batch.replies[i])) for i in turns.nonzero().flatten().tolist()]
                record["old_logprobs"] = batch.old_logprobs.cpu()[turns].tolist()
            else:
                record["candidates"] = context.candidates
                record["old_logprobs"] = batch.old_logprobs[u, : len(context.candidates)].tolist()
                record["choices"] = batch.choices.cpu()[turns].tolist()
                record["returns"] = batch.returns.cpu()[turns].tolist()
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.write(json.dumps({name: float(value) for name, value in metrics.items()}) + "\n")
    return path
