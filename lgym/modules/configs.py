"""The settings that algorithms have in common."""

from dataclasses import dataclass
from typing import Literal

from lgym.modules.config_checks import (
    require_clips,
    require_counts,
    require_one_of,
    require_positive,
    require_weights,
)
from lgym.types import ConfigError

KLEstimator = Literal["k1", "k2", "k3"]
KLPlace = Literal["loss", "reward"]
LossAggregation = Literal["sequence_mean", "token_mean", "max_length"]


@dataclass(frozen=True)
class LossConfig:
    """The policy's loss.

    L = L_policy - entropy_coef * H + old_kl_coef * KL(behavior policy || policy) + kl_coef * KL(policy ||
    reference)

    The divergences and the entropy of a choice between candidates are exact; those of free text are estimated
    from the tokens that were sampled (`lgym.functional.kl`), that from the behavior policy by k2. In the
    rewards (`kl_in`) the divergence from the reference is an estimate for choices too.
    """

    clip_low: float | None = 0.2
    """The ratio of new to old probability counts down to 1 - clip_low. Null, with clip_high, leaves it
    unclipped, as the policy gradient has it: for a single pass."""

    clip_high: float | None = 0.2
    """And up to 1 + clip_high; higher than clip_low is DAPO's clip-higher (arXiv:2503.14476)."""

    entropy_coef: float = 0.0
    """Weight of the entropy bonus, per nat. It pulls on a policy that is as good as it can be too: where
    advantages are next to nothing, Adam makes steps of full size of it."""

    old_kl_coef: float = 0.0
    """Weight of the divergence from the behavior policy, per nat (Schulman et al. 2017, equation 8). Clipping
    only stops pushing; this pulls back where Adam's momentum, or the value's gradient in shared adapters, has
    carried the policy on, and ever harder as an action's probability nears 0."""

    old_kl_target: float | None = None
    """Divergence from the behavior policy, in nats per decision, at which its weight has doubled; it grows in
    proportion, so that old_kl_coef * KL * (1 + KL / old_kl_target) holds a policy near where large advantages
    would carry it away. (A smooth form of the adaptive weight of Schulman et al. 2017, section 4.) Of free
    text the mean divergence of a minibatch decides. Null keeps the weight."""

    target_kl: float | None = None
    """A brake: where a minibatch's policy is this far (nats) from the behavior policy, its step leaves out
    the policy's loss and the entropy, and keeps the value's loss and the divergences, which pull it back;
    with `old_kl_coef: 0` nothing does, and no step is taken. Null never leaves anything out.
    `optim/steps_braked` counts these steps."""

    kl_coef: float = 0.0
    """Weight of the divergence from the frozen reference, per nat; 0 never runs the reference."""

    kl_estimator: KLEstimator | None = None
    """The estimator of that divergence where it is not exact. Null is k3 in the loss, where k2 may be given,
    and k1 in the rewards, where no other pulls toward the reference."""

    kl_in: KLPlace = "loss"
    """The place of that divergence: a term of the loss, or subtracted from the rewards before advantages
    are estimated."""

    loss_aggregation: LossAggregation = "sequence_mean"
    """The divisor of a token's loss: the tokens of its response, so that every response counts the same
    (GRPO); those of an average response, so that every token does (DAPO); or the limit `max_new_tokens` (Dr.
    GRPO)."""

    def __post_init__(self) -> None:
        if (self.clip_low is None) != (self.clip_high is None):
            raise ConfigError(
                f"clip_low is {self.clip_low} and clip_high is {self.clip_high}; give both, or null for both."
            )
        if self.clip_low is not None and self.clip_high is not None:
            require_clips(self.clip_low, self.clip_high)
        require_weights(entropy_coef=self.entropy_coef, old_kl_coef=self.old_kl_coef, kl_coef=self.kl_coef)
        require_positive(target_kl=self.target_kl, old_kl_target=self.old_kl_target)
        require_one_of("kl_estimator", self.ref_kl_estimator, KLEstimator)
        require_one_of("kl_in", self.kl_in, KLPlace)
        require_one_of("loss_aggregation", self.loss_aggregation, LossAggregation)
        if self.kl_in == "loss" and self.ref_kl_estimator == "k1":
            raise ConfigError(
                "kl_estimator k1 has no gradient as a loss: choose k2 or k3, or set kl_in: reward."
            )
        if self.kl_in == "reward" and self.ref_kl_estimator != "k1":
            raise ConfigError(
                f"kl_estimator {self.ref_kl_estimator} in the rewards does not pull toward the reference: "
                "choose k1, or set kl_in: loss."
            )

    @property
    def ref_kl_estimator(self) -> KLEstimator:
        """The estimator of the divergence from the reference: the given one, or that of its place."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3")


@dataclass(frozen=True)
class CriticConfig:
    """The value head's learning."""

    value_coef: float = 0.5
    """Weight of the value loss, which is that of normalized returns (`lgym.models.value_head`)."""

    value_clip: float | None = None
    """Distance that a value may move from the one at rollout time, in standard deviations of returns, before
    its loss is cut off; null does not clip."""

    value_lr_scale: float | None = None
    """The value head's learning rate, as a multiple of the optimizer's. The head starts from nothing while
    the adapters start from a model that can read, and until it is right, advantages are returns with
    noise. Null is 5, or 40 with the default optimizer for policies that write text."""

    value_warmup: int = 0
    """Rollouts at the start, behind those of `sft.rollouts`, that train the value alone, while a divergence
    from the behavior policy holds the policy where it is. The adapters so learn to tell states apart before
    they learn to act; otherwise the first updates teach what is good on average, everywhere (value
    pretraining: Yuan et al. 2025, VC-PPO, arXiv:2503.01491)."""

    detach_value: bool | None = None
    """Keep the value loss's gradient out of the language model, so that only the head learns from it. Null
    does so with a policy that writes text, where that gradient undid what demonstrations had taught."""

    def __post_init__(self) -> None:
        require_weights(value_coef=self.value_coef)
        require_positive(value_clip=self.value_clip, value_lr_scale=self.value_lr_scale)
        require_counts(value_warmup=self.value_warmup)


@dataclass(frozen=True)
class SFTConfig:
    """Supervised learning from `data.demonstrations`, `data.self_imitation` and `data.dagger`, beside the
    algorithm's own loss."""

    coef: float = 0.0
    """Weight of the negative log-likelihood of demonstrated turns, per token."""

    rollouts: int | None = None
    """Rollouts at the start that train on these alone, whatever the weight: each is `epochs` passes over the
    demonstrations and what has come from own episodes so far; while there is nothing, nothing is learned.
    Where they are all of a run, that is expert iteration (Anthony et al. 2017, arXiv:1705.08439), or DAgger.
    Null is 1 where there are demonstrations without a weight, else none."""

    epochs: int | None = None
    """Passes of each of these rollouts. Null is `data.update_epochs`, or, where `rollouts` is null too, as
    many more as make 64 minibatches: few demonstrations are read often."""

    lr_scale: float | None = None
    """The learning rate of these rollouts, as a multiple of the optimizer's: imitation bears larger steps
    than what comes behind it. Null is 1, or 8 with the default optimizer for policies that write text."""

    def __post_init__(self) -> None:
        require_weights(coef=self.coef)
        require_positive(lr_scale=self.lr_scale)
        require_counts(rollouts=self.rollouts or 0)
        require_positive(epochs=self.epochs)


CLIPPED = LossConfig()
POLICY_GRADIENT = LossConfig(clip_low=None, clip_high=None, old_kl_coef=1.0)
"""The default of algorithms without clipping: the divergence from the behavior policy holds the policy in its
place."""
