"""A minibatch whose loss is not finite, kept to be looked into."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lgym import distributed
from lgym.plain_text import as_json
from lgym.types import LgymError


class NonFiniteLossError(LgymError, RuntimeError):
    """The loss is NaN or infinite; training cannot go on from here."""


def save_batch(folder: str | Path, batch: Any, tokenizer: Any, metrics: Mapping[str, Tensor]) -> Path:
    """Write the records of a minibatch as JSON lines, and the metrics in a last line."""
    name = (
        "non_finite_loss.jsonl"
        if distributed.world_size() == 1
        else f"non_finite_loss_{distributed.rank()}.jsonl"
    )
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for record in batch.to("cpu").records(tokenizer):
            file.write(as_json(record) + "\n")
        file.write(as_json({name: float(value) for name, value in metrics.items()}) + "\n")
    return path
