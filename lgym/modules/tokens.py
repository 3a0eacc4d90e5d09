"""What the algorithms that learn token by token have in common: the batch, the loss and its terms.

They differ in credit alone: in the advantage that each token gets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import lightning as L
import torch
from torch import Tensor

from lgym import ranks
from lgym.batch import Likelihoods, ReplyBatch, Rollout
from lgym.functional import clip_fraction, kl_estimate, kl_k3, masked_mean, policy_gradient_loss, ppo_clip_loss, value_loss
from lgym.modules.base import PolicyLearner
from lgym.modules.bundles import bundles_of
from lgym.modules.said import padded, replies_of, taught_turn
from lgym.modules.settings import require_clips, require_reference, require_weights
from lgym.types import ConfigError, TaughtTurn

SHOWN_EPISODES = 3
"""Of each rollout, to look at."""

REPLIES_AT_ONCE, TOKENS_AT_ONCE = 128, 16_384
"""Distinct ones that a pass without gradient takes together, and their tokens with those of their prompts."""

Estimator = Literal["k1", "k2", "k3"]
DivergenceIn = Literal["loss", "reward"]
Divisor = Literal["reply", "tokens", "limit"]


@dataclass(frozen=True)
class TokenLoss:
    """The loss of one token.

    L = L_policy + value_coef * (V - R)^2 / 2 - entropy_coef * H
        + old_kl_coef * KL(pi_old || pi) + kl_coef * KL(pi || reference)

    Args:
        clip_low: the ratio of new to old probability of a token counts down to 1 - clip_low. Null, with clip_high, takes
            -A log pi in place of PPO's clipped objective: for a single pass.
        clip_high: and up to 1 + clip_high; higher than clip_low is DAPO's clip-higher (arXiv:2503.14476).
        entropy_coef: weight of the entropy bonus, per nat.
        old_kl_coef: weight of the divergence from the policy that played, per nat, by its k3 estimate: where clipping only
            stops pushing, it pulls back.
        kl_coef: weight of the divergence from the frozen reference, per nat; 0 never runs the reference.
        kl_estimator: how it is estimated from the tokens: k1, k2 or k3 (lgym.functional.kl).
        kl_in: whether it is a term of the loss, or taken from the rewards before any credit is given.
        sft_coef: weight of the negative log-likelihood of turns to imitate, per token: `data.demonstrations`, `data.replay`.
        sft_rollouts: rollouts at the start in which nothing but these is learned, whatever the weight: each is
            `data.update_epochs` passes over the demonstrations.
        normalise_by: what a token's loss is divided by: the tokens of its reply, so that every reply counts the same (GRPO);
            all tokens of the rollout, so that every token does (DAPO); or the limit `max_new_tokens` (Dr. GRPO).
    """

    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    entropy_coef: float = 0.0
    old_kl_coef: float = 0.0
    kl_coef: float = 0.0
    kl_estimator: Estimator = "k3"
    kl_in: DivergenceIn = "loss"
    normalise_by: Divisor = "reply"
    sft_coef: float = 0.0
    sft_rollouts: int = 0

    def __post_init__(self) -> None:
        if (self.clip_low is None) != (self.clip_high is None):
            raise ConfigError(f"clip_low is {self.clip_low} and clip_high is {self.clip_high}; give both, or null for both.")
        if self.clip_low is not None and self.clip_high is not None:
            require_clips(self.clip_low, self.clip_high)
        require_weights(entropy_coef=self.entropy_coef, old_kl_coef=self.old_kl_coef)
        require_one_of("kl_estimator", self.kl_estimator, Estimator)
        require_one_of("kl_in", self.kl_in, DivergenceIn)
        require_one_of("normalise_by", self.normalise_by, Divisor)
        if self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ConfigError("kl_estimator k1 has no gradient as a loss: choose k2 or k3, or set kl_in: reward.")


def require_one_of(name: str, value: str, choices: Any) -> None:
    """Raises `ValueError` unless the value is among those of a `Literal`: a program may give any text."""
    if value not in get_args(choices):
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(get_args(choices))}.")


CLIPPED = TokenLoss()
UNCLIPPED = TokenLoss(clip_low=None, clip_high=None)


def require_one_pass(trainer: L.Trainer, name: str, loss: TokenLoss) -> None:
    """Refuses more than one pass over a rollout where nothing holds the policy near the one that played."""
    passes = getattr(trainer.datamodule, "update_epochs", 1)  # type: ignore[attr-defined]
    if loss.clip_low is None and passes > 1:
        raise ConfigError(
            f"{name} without clipping learns from a rollout once, and data.update_epochs is {passes}: set it to 1, or set "
            "model.loss.clip_low and clip_high."
        )


@dataclass(frozen=True)
class Turns:
    """The turns of a rollout, stream by stream in the order of time, and the episodes that they belong to."""

    rewards: Tensor  # [E, N], less the divergence where that is in the rewards
    episodes: Tensor  # [turns] int64, the episode of each, from 0
    returns: Tensor  # [episodes] undiscounted sums of `rewards`
    groups: Tensor  # [episodes] int64, the reset seed of each


class TokenObjective:
    """Records, loss and metrics of one algorithm."""

    def __init__(self, learner: PolicyLearner, loss: TokenLoss, value_coef: float = 0.0) -> None:
        require_weights(value_coef=value_coef)
        require_reference(loss.kl_coef, learner.llm_config)
        learner.imitate(loss.sft_coef, loss.sft_rollouts)
        self.learner, self.settings, self.value_coef = learner, loss, value_coef
        self._order = self._episodes = torch.zeros(0, dtype=torch.int64)
        self._first = True

    def begin(self, rollout: Rollout) -> tuple[ReplyBatch, Turns]:
        """Everything that was said, without advantages yet, sorted by context; and who said it when."""
        self._first = True
        mask = rollout.mask
        rows = rollout.context_ids[mask]
        self._order = rows.argsort(stable=True)
        replies = replies_of(rollout)
        choices = torch.tensor([reply.choice for reply in replies])
        drawn = padded([reply.mask for reply in replies]).bool()
        batch = ReplyBatch(
            contexts=rollout.contexts,
            bundles=bundles_of(rollout),
            by_reply=rollout.candidate_logprobs is None,
            rows=rows[self._order],
            replies=tuple(replies[i].ids for i in self._order.tolist()),
            choices=choices[self._order],
            mask=drawn[self._order],
            old_logprobs=padded([reply.logprobs for reply in replies])[self._order],
            advantages=torch.zeros(drawn.shape),
            returns=None,
            ref_logprobs=None,
            scale=1.0 / ranks.mean(int(drawn.sum()) if self.settings.normalise_by == "tokens" else len(rows)),
        )
        rewards = rollout.rewards
        if self.settings.kl_coef > 0:
            batch = replace(batch, ref_logprobs=self._reference(batch))
        if batch.ref_logprobs is not None and self.settings.kl_in == "reward":
            kl = kl_estimate(batch.old_logprobs, batch.ref_logprobs, estimator=self.settings.kl_estimator)
            rewards = rewards.clone()
            rewards[mask] -= self.settings.kl_coef * self.in_time((kl * batch.mask).sum(1))
            batch = replace(batch, ref_logprobs=None)
        episodes = self._episodes = rollout.episode_ids[mask].unique(return_inverse=True)[1]
        returns = rewards.new_zeros(int(episodes.max()) + 1).index_add(0, episodes, rewards[mask])
        groups = torch.zeros(len(returns), dtype=torch.int64).index_copy(0, episodes, rollout.reset_seeds[mask])
        return batch, Turns(rewards, episodes, returns, groups)

    def in_time(self, columns: Tensor) -> Tensor:
        """What is sorted as the batch, in the order of `Turns`."""
        return torch.empty_like(columns).index_copy(0, self._order, columns)

    def credited(self, batch: ReplyBatch, advantages: Tensor, returns: Tensor | None = None) -> ReplyBatch:
        """The batch with its credit, without the turns that teach nothing.

        Args:
            batch: of `begin`.
            advantages: [turns] or [turns, T], in the order of `Turns`.
            returns: what values learn, likewise; of [turns], the value of the state before each turn.
        """

        columns = (advantages[:, None] if advantages.dim() == 1 else advantages)[self._order]
        batch = replace(batch, advantages=(columns * batch.mask).float())
        if returns is not None:
            batch = replace(batch, returns=returns.reshape(len(returns), -1)[self._order].float())
        self.learner.taught = self._taught(batch)
        taught = (batch.advantages != 0).any(1)
        terms = self.settings.entropy_coef, self.settings.old_kl_coef
        only_advantages = returns is None and batch.ref_logprobs is None and terms == (0, 0)
        if not only_advantages or not bool(taught.any()):
            return batch
        left = set(batch.rows[taught].tolist())
        kept = tuple(tuple(c for c in bundle if c in left) for bundle in batch.bundles)
        return replace(
            batch,
            bundles=tuple(bundle for bundle in kept if bundle),
            rows=batch.rows[taught],
            replies=tuple(reply for reply, kept in zip(batch.replies, taught.tolist(), strict=True) if kept),
            choices=batch.choices[taught],
            mask=batch.mask[taught],
            old_logprobs=batch.old_logprobs[taught],
            advantages=batch.advantages[taught],
        )

    def _taught(self, batch: ReplyBatch) -> list[list[TaughtTurn]]:
        """The first episodes of a policy that speaks, turn by turn."""
        if not batch.by_reply:
            return []
        places = self._order.argsort()  # of each turn in time
        shown: list[list[TaughtTurn]] = []
        for episode in range(SHOWN_EPISODES):
            turns = places[self._episodes == episode].tolist()
            shown.append([taught_turn(batch, turn) for turn in turns])
        return [turns for turns in shown if turns]

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Of a minibatch, with metrics. While the value warms up the policy is kept near the one that played."""
        distinct, which = batch.distinct()
        likely = self.learner.policy.likelihoods(distinct, entropy_gradient=self.settings.entropy_coef > 0).of(which)
        new, mask = likely.logprobs, batch.mask
        old, advantages = batch.old_logprobs.to(new.dtype), batch.advantages.to(new.dtype)
        low, high = self.settings.clip_low, self.settings.clip_high
        metrics = {}
        if low is None or high is None:
            losses = policy_gradient_loss(new, advantages)
        else:
            losses = ppo_clip_loss(new, old, advantages, clip_low=low, clip_high=high)
            metrics["policy/clip_fraction"] = masked_mean(clip_fraction(new, old, clip_low=low, clip_high=high), mask)
        old_kl = kl_k3(old, new)
        metrics |= {
            "loss/policy": masked_mean(losses, mask),
            "policy/entropy": masked_mean(likely.entropy, mask),
            "policy/approx_kl": masked_mean(old_kl, mask),
        }
        losses = losses - self.settings.entropy_coef * likely.entropy + self.settings.old_kl_coef * old_kl
        losses = old_kl if self.learner.warming_up else losses
        if batch.ref_logprobs is not None:
            ref_kl = kl_estimate(new, batch.ref_logprobs.to(new.dtype), estimator=self.settings.kl_estimator)
            losses = losses + self.settings.kl_coef * ref_kl
            metrics["policy/ref_kl"] = masked_mean(ref_kl, mask)
        if batch.returns is not None:
            values = likely.values[:, : batch.returns.shape[1]]
            of_value = value_loss(values, batch.returns.to(values.dtype)).to(new.dtype).expand_as(losses)
            losses = losses + self.value_coef * self.learner.reward_scale**2 * of_value
            metrics["loss/value"] = masked_mean(of_value, mask)
        if self._first:
            gap = ((new.detach() - old) * mask).abs().max()
            self.learner.rollout_metrics["policy/logprob_gap"] = float(gap)
        self._first = False
        total = ((losses * mask) / self._divisor(mask)).sum() * batch.scale
        metrics["loss/total"] = total
        return total, {name: value.detach() for name, value in metrics.items()}

    def divergence(self, batch: ReplyBatch) -> Tensor:
        """The mean estimate of KL(policy that played || policy now) per token of a minibatch."""
        distinct, which = batch.distinct()
        new = self.learner.policy.likelihoods(distinct).of(which).logprobs
        return masked_mean(kl_k3(batch.old_logprobs.to(new.dtype), new), batch.mask)

    def _divisor(self, mask: Tensor) -> Tensor | int:
        if self.settings.normalise_by == "reply":
            return mask.sum(1, keepdim=True).clamp(min=1)
        return self.learner.policy.max_new_tokens if self.settings.normalise_by == "limit" else 1

    def recorded(self, batch: ReplyBatch) -> Likelihoods:
        """Of the policy as it is, for all turns of a batch, on the CPU and without gradient."""
        shape = batch.mask.shape
        whole = Likelihoods(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape))
        columns = (whole.logprobs, whole.entropy, whole.values)
        with self.learner.acting() as policy:
            longest = max(map(len, batch.replies)) + max(len(context.prompt_ids) for context in batch.contexts)
            size = max(1, min(REPLIES_AT_ONCE, TOKENS_AT_ONCE // longest))
            for part in batch.parts(size, range(len(batch.bundles))):
                distinct, which = batch.select(part, batch.scale).distinct()
                own = policy.likelihoods(distinct.to(policy.llm.device))
                for column, values in zip(columns, (own.logprobs, own.entropy, own.values), strict=True):
                    column[part, : values.shape[1]] = values.float().cpu()[which]
        return whole

    def _reference(self, batch: ReplyBatch) -> Tensor:
        """[B, T] log-probabilities of the frozen model."""
        with self.learner.policy.llm.reference():
            return self.recorded(batch).logprobs
