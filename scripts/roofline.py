"""What the bare model can do: the model as transformers has it, without adapters, head or sharing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lgym.models import LLMConfig
from lgym.models.build import load_pretrained
from lgym.models.registry import find_entry


class Rates(NamedTuple):
    """Tokens a second."""

    forward: float
    forward_backward: float


class Roofline:
    """The bare model's rates at the best of a few shapes, forward and forward + backward to the input.

    A machine's speed drifts by a fifth within minutes: what is compared with these rates has to lie between
    two measurements of them.
    """

    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
        *,
        shapes: Sequence[tuple[int, int]],
        repeat: int,
    ) -> None:
        """
        Args:
            name: of the model.
            dtype: its weights'.
            device: where it runs.
            shapes: rows and tokens that the best is looked for among.
            repeat: passes that a rate is the median of.
        """
        model: Any = load_pretrained(LLMConfig(model=name), find_entry(name), dtype=dtype, device=device)[0]
        self._model = model.requires_grad_(False).to(device)
        self._device, self._repeat = device, repeat
        self._best = [
            max(shapes, key=lambda shape: self._rate(shape, backward=backward)) for backward in (False, True)
        ]

    def rates(self) -> Rates:
        """Measured now."""
        return Rates(*(self._rate(shape, backward=bool(i)) for i, shape in enumerate(self._best)))

    def _rate(self, shape: tuple[int, int], *, backward: bool) -> float:
        embed = self._model.get_input_embeddings()
        ids = torch.randint(0, embed.num_embeddings, shape, device=self._device)
        inputs = embed(ids).detach().requires_grad_(backward)

        def once() -> None:
            with torch.set_grad_enabled(backward):
                hidden = self._model.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state
                if backward:
                    hidden.float().sum().backward()

        return ids.numel() / _median_seconds(once, self._repeat, self._device)


def _median_seconds(once: Callable[[], None], repeat: int, device: torch.device) -> float:
    times = []
    for _ in range(repeat + 1):
        begun = time.perf_counter()
        once()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def between(rates: Sequence[Rates]) -> list[Rates]:
    """The means of neighbours, for what lies between them."""
    return [
        Rates((a.forward + b.forward) / 2, (a.forward_backward + b.forward_backward) / 2)
        for a, b in zip(rates, rates[1:], strict=False)
    ]
