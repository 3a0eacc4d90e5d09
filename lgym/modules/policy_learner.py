"""The base of algorithms that learn from advantages: the policy's loss over the turns of a rollout."""

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import replace
from typing import Any

from torch import Tensor

from lgym import distributed
from lgym.batch import ResponseBatch
from lgym.functional import clip_fraction, masked_mean, ppo_clip_loss, surrogate_loss
from lgym.modules.advantages import Advantages
from lgym.modules.base import GAP, NO_SFT, LLMLearner
from lgym.modules.config_checks import require_reference, require_single_pass
from lgym.modules.configs import CLIPPED, LossConfig
from lgym.modules.groups import require_comparable, require_groups, zero_variance_groups
from lgym.modules.metrics import advantage_reliability, rollout_metrics
from lgym.modules.preparation import turns_to_learn_from, with_advantages, without_idle_turns
from lgym.modules.response_batch import RolloutTurns, token_traces
from lgym.modules.token_objective import (
    behavior_kl,
    divergences,
    policy_objective,
    term_weights,
    value_objective,
)
from lgym.rollout import Rollout


class PolicyLearner(LLMLearner, ABC):
    """A policy under training. A subclass estimates each turn's advantage (`estimate_advantages`)."""

    compares_groups = False
    """True if advantages compare the episodes of a group."""

    def __init__(self, loss: LossConfig = CLIPPED, **kwargs: Any) -> None:
        """
        Args:
            loss: clipping, entropy, divergences and their weights.
            **kwargs: of every algorithm: llm, policy, optimizer, lr_scheduler, sft.
        """
        super().__init__(**kwargs)
        require_reference(loss.kl_coef, self.llm_config)
        self.loss_config = loss

    @abstractmethod
    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        """The advantages of a rollout, and with a critic the targets of its values.

        Args:
            turns: the T turns that were played, in the order of time, with rewards, episodes and groups.

        Returns:
            [T] advantages of turns, or [T, tokens] where tokens differ.
        """

    @property
    def open_settings(self) -> Set[str]:
        """Settings that random play decides: demonstrations, for a model that has learned nothing yet and
        chooses between candidates."""
        chooses = self.policy.scores_candidates and not self.policy.generates_text
        is_new = self.llm_config.adapter is None and self.sft == NO_SFT
        return {"demonstrations"} if chooses and is_new else frozenset()

    @property
    def needs_whole_episodes(self) -> bool:
        """True if a rollout must not end within an episode."""
        return self.compares_groups

    @property
    def single_pass(self) -> bool:
        """True if nothing holds further passes over a rollout near the policy that played it."""
        return self.loss_config.clip_low is None

    @property
    def evaluates_rollout(self) -> bool:
        """True if `prepare` asks for all prompts, or responses, of a rollout once more."""
        return self.policy.generates_text or self.loss_config.kl_coef > 0

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit" and self.compares_groups:
            require_groups(self.trainer, type(self).__name__)
        if stage == "fit" and self.single_pass:
            passes = getattr(self.trainer.datamodule, "update_epochs", 1)  # type: ignore[attr-defined]
            require_single_pass(passes, type(self).__name__)

    def prepare(self, rollout: Rollout) -> tuple[ResponseBatch, dict[str, float]]:
        """The turns of a rollout with their advantages, sorted by prompt, and the rollout's metrics."""
        turns = turns_to_learn_from(rollout, self.loss_config, self.reference)
        metrics = rollout_metrics(turns)
        if turns.penalties is not None:
            chosen = int(turns.batch.action_mask.sum())
            metrics["policy/ref_kl"] = float(turns.penalties.sum()) / (self.loss_config.kl_coef * chosen)
        if self.compares_groups:
            require_comparable(turns, type(self).__name__)
            metrics["rollout/frac_reward_zero_std"] = zero_variance_groups(turns)
        estimate = self.estimate_advantages(turns)
        batch = with_advantages(turns, estimate, self.loss_config)
        metrics |= advantage_reliability(turns, batch)
        learned_from = without_idle_turns(batch, self.loss_config)
        return replace(learned_from, token_traces=token_traces(turns, batch)), metrics | dict(
            estimate.metrics
        )

    def loss(self, batch: ResponseBatch) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The loss of a minibatch; `lgym.modules.token_objective` has its formula.

        Args:
            batch: B turns on the model's device.

        Returns:
            A scalar, or `None` where the policy has gone too far for another step, or nothing is to be
            imitated yet; and metrics.
        """
        if self.current_epoch < self.sft_rollouts:
            return self.sft_objective(batch.supervised)
        config, mask, metrics = self.loss_config, batch.action_mask, {}
        output = self.policy.evaluate_actions(batch, entropy_gradient=config.entropy_coef > 0)
        logprobs, old_logprobs = output.logprobs, batch.old_logprobs.to(output.logprobs.dtype)
        advantages = batch.advantages.to(logprobs.dtype)
        if config.clip_low is None or config.clip_high is None:
            policy_loss = surrogate_loss(logprobs, old_logprobs, advantages)
        else:
            clips = {"clip_low": config.clip_low, "clip_high": config.clip_high}
            policy_loss = ppo_clip_loss(logprobs, old_logprobs, advantages, **clips)
            metrics["policy/clip_fraction"] = masked_mean(
                clip_fraction(logprobs, old_logprobs, **clips), mask
            )
        terms = {"policy": policy_loss, "entropy": output.entropy, **divergences(config, batch, output)}
        names = {"policy": "loss/policy", "entropy": "policy/entropy", "ref_kl": "policy/ref_kl"}
        for name, term in terms.items():
            if name in names:
                metrics[names[name]] = masked_mean(term.detach(), mask)
        metrics[self.kl_metric] = masked_mean(behavior_kl(batch, output).detach(), mask)
        braked = self._brakes(metrics[self.kl_metric], batch.num_turns)
        self.steps_braked += braked
        if braked and config.old_kl_coef == 0:
            return None, {}
        weights = term_weights(config, self.critic, warming_up=self.warming_up, braked=braked)
        total = policy_objective(config, batch, terms, weights, self.policy.max_new_tokens)
        if batch.returns is not None:
            value_part, metrics["loss/value"] = value_objective(
                self.critic, batch, output, self.value_head.std
            )
            total = total + value_part
        if batch.idle:
            total = 0.0 * total  # an optimizer takes no step where the gradient is 0
        if batch.supervised is not None and self.sft.coef > 0:
            metrics["loss/sft"] = self.sft_loss(batch.supervised)
            total = total + self.sft.coef * metrics["loss/sft"]
        if batch.metrics is not None:  # the first of its rollout: the policy is still the behavior policy
            metrics[GAP] = ((logprobs - batch.old_logprobs) * mask).abs().max()
        metrics["loss/total"] = total
        return total, {name: value.detach() for name, value in metrics.items()}

    @property
    def kl_metric(self) -> str:
        """The name of the divergence from the behavior policy among the metrics: exact, or estimated."""
        return "policy/approx_kl" if self.policy.generates_text else "policy/old_kl"

    def _brakes(self, kl: Tensor, num_turns: int) -> bool:
        """Check if a minibatch's policy is too far from the behavior policy; of all processes, so that they
        step alike."""
        target = self.loss_config.target_kl
        if target is None or self.warming_up:
            return False
        return bool(distributed.all_reduce_weighted_mean(kl, num_turns) > target)

    def step_metrics(self, metrics: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """See `LLMLearner`. Of a rollout's only step the divergence is that behind it, which
        `on_train_batch_end` logs."""
        if batch_idx == 0 and self.trainer.is_last_batch:
            metrics.pop(self.kl_metric, None)
        return metrics

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        only_step = batch_idx == 0 and self.trainer.is_last_batch and self.steps_taken > 0
        if only_step and self.current_epoch >= self.sft_rollouts:
            with self.inference() as policy:
                kl = masked_mean(behavior_kl(batch, policy.evaluate_actions(batch)), batch.action_mask)
            size = batch.num_turns
            self.log(self.kl_metric, kl, on_step=False, on_epoch=True, batch_size=size, sync_dist=True)

    @property
    def warming_up(self) -> bool:
        """True while rollouts train the value alone: the first `value_warmup`, behind those of
        `sft.rollouts`. (Asked when it learns: when a resumed run prepares a rollout, `rollouts_undone` is not
        restored yet.)"""
        return self.rollouts_learned < self.sft_rollouts + self.critic.value_warmup
