"""A learning-rate schedule counted in rollouts, for `lr_scheduler` in the YAML. Any of torch's works as
well."""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lgym.types import ConfigError


class WarmupCosine(LambdaLR):
    """Linear warm-up, then half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983) down to a share of the
    full rate.

    Rollout n of `warmup` gets (n + 1) / (warmup + 1) of the rate; from there it falls to `final` at `total`,
    and stays. Adam's first steps are as large as any, whatever the gradient: at the full rate a few of them
    can take a policy to one action for good. Its last ones are so too, when all do well and the advantages
    are chance: a policy holds what it has learned where the rate falls.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup: int,
        total: int | None = None,
        final: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        """
        Args:
            optimizer: whose rates it sets.
            warmup: rollouts until the full rate.
            total: rollouts until the final rate; null is the run's, trainer.max_epochs.
            final: the final rate as a share of the full one.
            last_epoch: rollouts already done; torch keeps it.
        """
        if warmup < 0 or (total is not None and warmup >= total):
            raise ConfigError(
                f"warmup is {warmup} and total is {total}; warmup must be at least 0 and below total."
            )
        if not 0.0 <= final <= 1.0:
            raise ConfigError(f"final is {final}; it must lie between 0 and 1.")
        self.total = total
        self.total_is_given = total is not None

        def share(rollout: int) -> float:
            if rollout < warmup:
                return (rollout + 1) / (warmup + 1)
            if self.total is None:
                return 1.0
            progress = min(1.0, (rollout - warmup) / max(1, self.total - warmup))
            return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

        super().__init__(optimizer, share, last_epoch)

    def fall_over(self, rollouts: int | None) -> None:
        """Fall over so many rollouts, where no `total` was given; over any number (`None`, -1) never."""
        if not self.total_is_given:
            self.total = rollouts if rollouts is not None and rollouts > 0 else None

    def state_dict(self) -> dict[str, Any]:
        """torch's, without the length: a run that is prolonged falls over its new one."""
        return {name: value for name, value in super().state_dict().items() if not name.startswith("total")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """torch's, with the rates of the place in this schedule, whose length may be another."""
        super().load_state_dict(state_dict)
        groups = zip(self.optimizer.param_groups, self.base_lrs, self.lr_lambdas, strict=True)
        for group, rate, share in groups:
            group["lr"] = rate * share(self.last_epoch)
