"""What is kept when a loss is not a number, so that it can be looked into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from lgym import ranks
from lgym.batch import ReplyBatch, TurnBatch
from lgym.plain_text import as_json
from lgym.types import LgymError


class NonFiniteLossError(LgymError, RuntimeError):
    """The loss is NaN or infinite; training cannot go on from here."""


def save_batch(folder: str | Path, batch: TurnBatch | ReplyBatch, tokenizer: Any, metrics: dict[str, Tensor]) -> Path:
    """Writes a minibatch as JSON lines, a context a line with its turns, and the metrics in a last line."""
    name = "non_finite_loss.jsonl" if ranks.size() == 1 else f"non_finite_loss_{ranks.rank()}.jsonl"
    path = Path(folder) / name
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
            file.write(as_json(record) + "\n")
        file.write(as_json({name: float(value) for name, value in metrics.items()}) + "\n")
    return path
