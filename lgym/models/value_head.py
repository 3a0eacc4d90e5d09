"""The value head: V(s) from the hidden state at the last token of the prompt, before the agent acts."""

import torch
from torch import Tensor, nn

FORGETTING = 0.5
"""Share that the newest returns have in the statistics: a policy that learns soon leaves old returns behind."""

SMALLEST_STD = 1e-3
"""Smallest standard deviation, as a share of the mean: below it is rounding."""

TINY_STD = 1e-8
"""Smallest standard deviation of all. Returns that are next to nothing for hundreds of rollouts halve its
square each time, down to a division by 0."""


class ValueHead(nn.Module):
    """A two-layer perceptron in fp32, H -> hidden -> 1, whose output is a normalized return.

    V(s) = mean + std * output(s), with the mean and the standard deviation of the returns that it learns. When
    these move, the output layer is rescaled so that no value changes (PopArt: "Learning values across many
    orders of magnitude", van Hasselt et al. 2016, arXiv:1602.07714, section 2.2). The output starts at exactly
    0: the first advantages are plain returns instead of returns minus noise, and from the first returns on
    every value starts at their mean.
    """

    mean: Tensor  # [] of returns
    std: Tensor  # [] of returns
    updates: Tensor  # [] int64

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, dtype=torch.float32)
        self.hidden = nn.Linear(hidden_size, width, dtype=torch.float32)
        self.output = nn.Linear(width, 1, dtype=torch.float32)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("mean", torch.tensor(0.0))
        self.register_buffer("std", torch.tensor(1.0))
        self.register_buffer("updates", torch.tensor(0))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., H] hidden states of any precision to [...] values, in rewards and the head's own precision
        (fp32)."""
        with torch.autocast(hidden_states.device.type, enabled=False):
            x = self.norm(hidden_states.to(self.norm.weight.dtype))
            return self.mean + self.std * self.output(torch.tanh(self.hidden(x))).squeeze(-1)

    @torch.no_grad()
    def update_statistics(self, returns: Tensor) -> None:
        """Let the mean and the standard deviation follow the returns of a rollout.

        mean <- (1 - f) mean + f mean(R), and the mean square likewise, with f = 1 for the first rollout and
        `FORGETTING` from then on. Where all returns are equal, the standard deviation stays.

        Args:
            returns: [N] targets of values, at least one.
        """
        first = int(self.updates) == 0
        share = 1.0 if first else FORGETTING
        returns, mean, std = returns.double(), float(self.mean), float(self.std)
        mean_square = (1 - share) * (std**2 + mean**2) + share * float(returns.square().mean())
        new_mean = (1 - share) * mean + share * float(returns.mean())
        deviation = max(0.0, mean_square - new_mean**2) ** 0.5
        if bool((returns == returns[0]).all()):
            deviation = std
        new_std = max(deviation, SMALLEST_STD * abs(new_mean), TINY_STD)
        if not first:
            self.output.weight.mul_(std / new_std)
            self.output.bias.mul_(std).add_(mean - new_mean).div_(new_std)
        self.mean.fill_(new_mean)
        self.std.fill_(new_std)
        self.updates.add_(1)
