"""The value head: V(s) from the hidden state at the last token of the prompt, before the agent acts."""

import torch
from torch import Tensor, nn

FORGETTING = 0.5
"""Share that the newest rollout has in the statistics: a policy that learns leaves old returns behind."""

SMALLEST_STD = 1e-3
"""Smallest standard deviation of returns, as a share of the mean: below it is rounding."""

SMALLEST_FEATURE_STD, LARGEST_FEATURE = 0.1, 10.0
"""Smallest standard deviation of a feature, as a share of the median one's, and the size at which
standardized ones are cut off."""

TINY_STD = 1e-8
"""Smallest standard deviation of all. Returns that are next to nothing for hundreds of rollouts halve its
square each time, down to a division by 0."""


class ValueHead(nn.Module):
    """A two-layer perceptron in fp32, H -> hidden -> 1, from standardized features to a normalized return.

    The hidden states at the ends of prompts are nearly the same: one prompt differs from another by some
    percent. So each feature has the mean over prompts subtracted and is divided by its standard deviation, as
    observations are in the field's implementations ("What Matters In On-Policy Reinforcement Learning?",
    Andrychowicz et al. 2021, arXiv:2006.05990, section 3.3). The language model gets the gradient as if they
    were not divided: it would be some twenty times as large, and move all hidden states at once.

    V(s) = mean + std * output(s), with the mean and the standard deviation of the returns that it learns.
    When these move, the output layer is rescaled so that no value changes (PopArt: "Learning values across
    many orders of magnitude", van Hasselt et al. 2016, arXiv:1602.07714, section 2.2). The output starts at
    exactly 0: the first advantages are plain returns instead of returns minus noise, and from the first
    returns on every value starts at their mean.
    """

    mean: Tensor  # [] of returns
    std: Tensor  # [] of returns
    feature_mean: Tensor  # [H] of normalized hidden states
    feature_std: Tensor  # [H] likewise
    updates: Tensor  # [] int64, rollouts that these follow

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False)
        self.hidden = nn.Linear(hidden_size, width, dtype=torch.float32)
        self.output = nn.Linear(width, 1, dtype=torch.float32)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("mean", torch.zeros((), dtype=torch.float32))
        self.register_buffer("std", torch.ones((), dtype=torch.float32))
        self.register_buffer("feature_mean", torch.zeros(hidden_size, dtype=torch.float32))
        self.register_buffer("feature_std", torch.ones(hidden_size, dtype=torch.float32))
        self.register_buffer("updates", torch.tensor(0))

    @property
    def has_learned(self) -> bool:
        """True once it knows returns, and one prompt may have another value than the next."""
        return int(self.updates) > 0 and bool(self.output.weight.any())

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., H] hidden states of any precision to [...] values, in rewards and the head's own precision
        (fp32)."""
        with torch.autocast(hidden_states.device.type, enabled=False):
            x = self.features(hidden_states)
            return self.mean + self.std * self.output(torch.tanh(self.hidden(x))).squeeze(-1)

    def features(self, hidden_states: Tensor) -> Tensor:
        """[..., H] standardized features of hidden states."""
        features = self.norm(hidden_states.to(self.hidden.weight.dtype))
        x = (features.detach() - self.feature_mean) / self.feature_std
        return x.clamp(-LARGEST_FEATURE, LARGEST_FEATURE) + (features - features.detach())

    @torch.no_grad()
    def update_features(self, hidden_states: Tensor) -> None:
        """Let the features' means and standard deviations follow a rollout's prompts, with the same f.

        Args:
            hidden_states: [n, H] of distinct prompts, on any device; of one alone nothing is learned.
        """
        if len(hidden_states) < 2:
            return
        share = 1.0 if int(self.updates) == 0 else FORGETTING
        features = self.norm(hidden_states.to(self.feature_mean))
        std = features.std(0)
        median = std.median()
        std = std.clamp(min=SMALLEST_FEATURE_STD * float(median)) if median > 0 else torch.ones_like(std)
        self.feature_mean.lerp_(features.mean(0), share)
        self.feature_std.lerp_(std, share)

    @torch.no_grad()
    def update_statistics(self, returns: Tensor) -> None:
        """Let the mean and the standard deviation follow the returns of a rollout.

        mean <- (1 - f) mean + f mean(R), and the mean square likewise. f is 1 until the head has learned, so
        that it begins at the level of the newest rollout, however many were for demonstrations before, and
        `FORGETTING` from then on. Where all returns are equal, the standard deviation stays.

        Args:
            returns: [N] targets of values, at least one.
        """
        learned = self.has_learned
        share = FORGETTING if learned else 1.0
        returns, mean, std = returns.cpu().double(), float(self.mean), float(self.std)
        mean_square = (1 - share) * (std**2 + mean**2) + share * float(returns.square().mean())
        new_mean = (1 - share) * mean + share * float(returns.mean())
        deviation = max(0.0, mean_square - new_mean**2) ** 0.5
        if bool((returns == returns[0]).all()):
            deviation = std
        new_std = max(deviation, SMALLEST_STD * abs(new_mean), TINY_STD)
        self.mean.fill_(new_mean)
        self.std.fill_(new_std)
        self.updates.add_(1)
        if learned:
            self.preserve_values(mean, std)

    @torch.no_grad()
    def preserve_values(self, old_mean: float, old_std: float) -> None:
        """Rescale the output layer so that values are what they were with another mean and standard deviation
        of returns."""
        self.output.weight.mul_(old_std / float(self.std))
        self.output.bias.mul_(old_std).add_(old_mean - float(self.mean)).div_(float(self.std))
