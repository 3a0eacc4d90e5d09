"""Group relative policy optimization over the tokens of free text."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym.batch import ReplyBatch, Rollout
from lgym.functional import clip_fraction, group_advantages, kl_k3, masked_mean, ppo_clip_loss
from lgym.models import LLMConfig
from lgym.modules.base import PolicyLearner, require_reference
from lgym.modules.describe import describe
from lgym.modules.ppo import DEFAULT_LLM, default_optimizer
from lgym.policies import GenerationPolicy

NO_GROUPS = "GRPO compares episodes from the same reset seed: set data.group_size to 2 or more."


class GRPO(PolicyLearner):
    """GRPO (Shao et al. 2024, arXiv:2402.03300, equation 3), for episodes of any number of turns.

    Per token:  L = L_clip + kl_coef * k3(pi || reference)

    An episode's return is compared with those of its group, the `data.group_size` episodes from the same reset seed, and
    every token said in it has that advantage. No value is learned.
    """

    policy: GenerationPolicy

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: GenerationPolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        kl_coef: float = 0.0,
        scale_by_std: bool = True,
        normalise_by: Literal["reply", "tokens", "limit"] = "reply",
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it speaks.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 3e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; null is none.
            clip_low: the ratio of new to old probability of a token counts down to 1 - clip_low.
            clip_high: and up to 1 + clip_high; higher than clip_low is DAPO's clip-higher (arXiv:2503.14476).
            kl_coef: weight of the divergence from the frozen reference, per nat; 0 never runs the reference.
            scale_by_std: divide a group's advantages by the standard deviation of its returns; off is Dr. GRPO's
                (arXiv:2503.20783).
            normalise_by: what a token's loss is divided by: the tokens of its reply, so that every reply counts the same
                (GRPO); all tokens of the rollout, so that every token does (DAPO); or the limit `max_new_tokens` (Dr. GRPO).
        """
        super().__init__(llm, policy or GenerationPolicy(), optimizer, lr_scheduler, value_lr_scale=1.0)
        if not 0.0 < clip_low < 1.0:
            raise ValueError(f"clip_low is {clip_low}; it must lie between 0 and 1.")
        if clip_high <= 0:
            raise ValueError(f"clip_high is {clip_high}; it must be above 0.")
        require_reference(kl_coef, llm)
        self.clip_low, self.clip_high = clip_low, clip_high
        self.kl_coef = kl_coef
        self.scale_by_std = scale_by_std
        self.normalise_by = normalise_by
        self._first = True

    def setup(self, stage: str) -> None:
        """Refuses, before a model is loaded, data without groups."""
        if stage == "fit" and getattr(self.trainer.datamodule, "group_size", 2) < 2:  # type: ignore[attr-defined]
            raise ValueError(NO_GROUPS)

    def prepare(self, rollout: Rollout) -> ReplyBatch:
        """Every turn with its episode's advantage, in the order of their contexts, without those that teach nothing."""
        mask = rollout.mask
        rows, choices = rollout.context_ids[mask], rollout.choices[mask]
        _, episodes = rollout.episode_ids[mask].unique(return_inverse=True)
        rewards = rollout.rewards[mask]
        returns = rewards.new_zeros(int(episodes.max()) + 1).index_add(0, episodes, rewards)
        groups = torch.zeros(len(returns), dtype=torch.int64).index_copy(0, episodes, rollout.reset_seeds[mask])
        _require_comparable(rollout, returns, groups, rows, episodes)
        advantages = group_advantages(returns, groups, scale_by_std=self.scale_by_std)[episodes]
        self._first = True
        alike = torch.stack([(returns[groups == group] == returns[groups == group][0]).all() for group in groups.unique()])
        self.rollout_metrics = describe(rollout) | {"rollout/groups_without_signal": float(alike.float().mean())}
        taught = advantages != 0 if self.kl_coef == 0 and bool((advantages != 0).any()) else torch.ones_like(episodes).bool()
        order = rows.argsort(stable=True)
        order = order[taught[order]]
        said = [rollout.replies[choice] for choice in choices[order].tolist()]
        batch = ReplyBatch(
            contexts=rollout.contexts,
            rows=rows[order],
            replies=tuple(reply.ids for reply in said),
            old_logprobs=_padded([reply.logprobs for reply in said]),
            advantages=advantages[order],
            ref_logprobs=None,
            scale=1.0 / (sum(len(reply.ids) for reply in rollout.replies) if self.normalise_by == "tokens" else len(rows)),
        )
        return batch if self.kl_coef == 0 else self._with_reference(batch)

    def loss(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        new, entropy = self.policy(batch.contexts, batch.rows, batch.replies)
        mask, old = batch.mask, batch.old_logprobs.to(new.dtype)
        advantages = batch.advantages.to(new.dtype)[:, None].expand_as(new)
        losses = ppo_clip_loss(new, old, advantages, clip_low=self.clip_low, clip_high=self.clip_high)
        metrics = {
            "loss/policy": masked_mean(losses, mask),
            "policy/entropy": masked_mean(entropy, mask),
            "policy/approx_kl": masked_mean(kl_k3(old, new), mask),
            "policy/clip_fraction": masked_mean(
                clip_fraction(new, old, clip_low=self.clip_low, clip_high=self.clip_high), mask
            ),
        }
        if batch.ref_logprobs is not None:
            ref_kl = kl_k3(new, batch.ref_logprobs.to(new.dtype))
            losses = losses + self.kl_coef * ref_kl
            metrics["policy/ref_kl"] = masked_mean(ref_kl, mask)
        if self._first:
            self.rollout_metrics["policy/logprob_gap"] = float((new.detach() - old).abs().max())
        self._first = False
        lengths = mask.sum(1, keepdim=True)
        divisors: dict[str, Tensor | int] = {"reply": lengths, "tokens": 1, "limit": self.policy.max_new_tokens}
        total = ((losses * mask) / divisors[self.normalise_by]).sum() * batch.scale
        metrics["loss/total"] = total
        return total, {name: value.detach() for name, value in metrics.items()}

    def _with_reference(self, batch: ReplyBatch) -> ReplyBatch:
        """The batch with the frozen model's log-probabilities."""
        logprobs = torch.zeros_like(batch.old_logprobs)
        turns = 0
        with self.acting() as policy, policy.llm.reference():
            for part in batch.minibatches(16, batch.rows.unique().tolist()):
                own, _ = policy(part.contexts, part.rows, part.replies)
                logprobs[turns : turns + len(part), : own.shape[1]] = own.cpu()
                turns += len(part)
        return replace(batch, ref_logprobs=logprobs)


def _padded(rows: list[tuple[float, ...]]) -> Tensor:
    """[B, T], 0 behind a row's end."""
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.float32)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = torch.tensor(values, dtype=torch.float32)
    return padded


def _require_comparable(rollout: Rollout, returns: Tensor, groups: Tensor, rows: Tensor, episodes: Tensor) -> None:
    """Whole episodes, and the same first observation throughout a group."""
    if len(returns) != len(rollout.episode_returns):
        raise ValueError("GRPO compares whole episodes: set data.episodes_per_rollout instead of data.turns_per_rollout.")
    if len(groups.unique()) == len(groups):
        raise ValueError(NO_GROUPS)
    begins = torch.ones_like(episodes, dtype=torch.bool)
    begins[1:] = episodes[1:] != episodes[:-1]  # an episode's turns lie together, in their order
    first = torch.zeros_like(groups).index_copy(0, episodes[begins], rows[begins])
    for group in groups.unique():
        seen = first[groups == group].unique()
        if len(seen) > 1:
            one, other = (rollout.contexts[context].observation_text for context in seen[:2].tolist())
            raise ValueError(
                f"Two episodes that were reset with seed {int(group)} began differently: {one!r} and {other!r}. The "
                "environment does not honour its reset seed, so its episodes cannot be compared. Use PPO, or seed it."
            )
