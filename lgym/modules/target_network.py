"""The target network: a slowly moving copy of what is trained, over the same frozen model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class TargetNetwork:
    """A second set of the trained weights, adapters and heads, that takes the place of the first for a while.

    "Human-level control through deep reinforcement learning", Mnih et al. 2015, doi:10.1038/nature14236. The
    frozen model is there once.

    Args:
        module: whose trained weights are copied.
    """

    def __init__(self, module: nn.Module) -> None:
        self._trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._weights = {name: p.detach().clone() for name, p in self._trained.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager in which the module computes with the target's weights."""
        online = {name: p.data for name, p in self._trained.items()}
        try:
            for name, parameter in self._trained.items():
                parameter.data = self._weights[name]
            yield
        finally:
            for name, parameter in self._trained.items():
                parameter.data = online[name]

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Move the target's weights to the trained ones by a share of the difference; 1 copies them (Polyak
        averaging: Lillicrap et al. 2015, arXiv:1509.02971, algorithm 1, there tau)."""
        for name, parameter in self._trained.items():
            self._weights[name].lerp_(parameter.detach(), share)

    def state_dict(self) -> dict[str, Tensor]:
        """The target's weights."""
        return dict(self._weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name, weight in self._weights.items():
            weight.copy_(state[name])
