"""The LightningModule that every algorithm extends: it owns the model, its optimizer, evaluation and
checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym import distributed
from lgym.batch import ResponseBatch
from lgym.functional import masked_mean
from lgym.models import LLMConfig, build_llm
from lgym.modules.advantages import Advantages
from lgym.modules.checkpointing import load_checkpoint, save_checkpoint
from lgym.modules.config_checks import require_reference
from lgym.modules.configs import CLIPPED, CriticConfig, LossConfig, SFTConfig
from lgym.modules.groups import require_groups
from lgym.modules.learning_rates import default_optimizer, parameter_groups
from lgym.modules.metrics import reduce_metrics
from lgym.modules.nonfinite import save_batch
from lgym.modules.optimization import OptimizedModule
from lgym.modules.preparation import prepare
from lgym.modules.response_batch import RolloutTurns
from lgym.modules.sharded_weights import require_whole_weights
from lgym.modules.token_objective import (
    behavior_kl,
    policy_objective,
    term_weights,
    token_terms,
    value_objective,
)
from lgym.policies import CandidatePolicy, GenerationPolicy, LLMPolicy, ThinkPolicy
from lgym.rollout import Rollout
from lgym.types import ConfigError

AnyPolicy = CandidatePolicy | GenerationPolicy | ThinkPolicy | LLMPolicy
"""The policies by name, so that a YAML may leave out the class path, and any of a user's own."""

DEFAULT_LLM = LLMConfig()
NO_SFT = SFTConfig()
GAP = "policy/logprob_diff_max"


class PolicyLearner(OptimizedModule, ABC):
    """A language model under training. A subclass says what each turn's advantage is
    (`estimate_advantages`)."""

    has_critic = False
    """True if the model has a value head, which `critic` trains."""

    compares_groups = False
    """True if advantages compare the episodes of a group."""

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: AnyPolicy | None = None,
        optimizer: OptimizerCallable = default_optimizer,
        lr_scheduler: LRSchedulerCallable | None = None,
        loss: LossConfig = CLIPPED,
        sft: SFTConfig = NO_SFT,
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it acts, by class_path: any of lgym.policies; by default it answers in free text.
            optimizer: any torch optimizer by class_path; by default AdamW with learning rate 3e-4.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; null
                is none.
            loss: clipping, entropy, divergences and their weights.
            sft: learning from demonstrations beside the algorithm's own loss.
        """
        super().__init__(optimizer, lr_scheduler)
        require_reference(loss.kl_coef, llm)
        self.llm_config = llm
        self.policy = policy or GenerationPolicy()
        self.loss_config = loss
        self.sft = sft
        self.critic = CriticConfig()
        self.reward_scale = 1.0  # value head's output per reward
        self.strict_loading = False  # a checkpoint leaves the frozen base model out
        self.rollout_metrics: dict[str, float] = {}  # of the rollout at hand, over all processes

    @abstractmethod
    def estimate_advantages(self, turns: RolloutTurns) -> Advantages:
        """The advantages of a rollout, and with a critic the targets of its values.

        Args:
            turns: the T turns that were played, in the order of time, with rewards, episodes and groups.

        Returns:
            [T] advantages of turns, or [T, tokens] where tokens differ.
        """

    def use_critic(self, critic: CriticConfig, reward_scale: float) -> None:
        """Train the value head with these settings, on rewards times `reward_scale`."""
        self.critic = critic
        self.reward_scale = reward_scale
        self.policy.detach_value = critic.detach_value

    @property
    def tokenizer(self) -> Any:
        return self.policy.llm.tokenizer

    @property
    def context_length(self) -> int:
        return self.policy.llm.context_length - self.policy.max_new_tokens

    @property
    def uses_sft(self) -> bool:
        return self.sft.coef > 0 or self.sft.rollouts > 0

    @property
    def sft_rollouts(self) -> int:
        return self.sft.rollouts

    @contextmanager
    def inference(self) -> Iterator[LLMPolicy]:
        """The policy as it acts: no gradients, no dropout, in the trainer's precision (without one, as it
        is)."""
        was_training = self.training
        plugin = None if self._trainer is None else self.trainer.precision_plugin
        precision = nullcontext() if plugin is None else plugin.forward_context()
        self.eval()
        try:
            with torch.no_grad(), precision, self.policy.llm.frozen_weights():
                yield self.policy
        finally:
            self.train(was_training)

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.compares_groups:
            require_groups(self.trainer, type(self).__name__)
        passes = getattr(self.trainer.datamodule, "update_epochs", 1)  # type: ignore[attr-defined]
        if stage == "fit" and self.loss_config.clip_low is None and passes > 1:
            raise ConfigError(
                f"{type(self).__name__} without clipping learns from a rollout once, and data.update_epochs "
                f"is {passes}: set it to 1, or set model.loss.clip_low and clip_high."
            )

    def configure_model(self) -> None:
        if not hasattr(self.policy, "llm"):
            if self._trainer is not None:
                require_whole_weights(self.trainer.strategy)
            device = self.trainer.strategy.root_device if self._trainer is not None else torch.device("cpu")
            dtype = torch.get_default_dtype()
            llm = build_llm(self.llm_config, dtype=dtype, device=device, value_head=self.has_critic)
            self.policy.bind(llm)
        self.policy.llm.value_scale = 1.0 / self.reward_scale

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.policy.llm, self.make_optimizer, self.critic.value_lr_scale)

    def prepare(self, rollout: Rollout) -> tuple[ResponseBatch, dict[str, float]]:
        """The turns of a rollout with their advantages, sorted by prompt, and the rollout's metrics."""
        return prepare(self, rollout)

    def loss(self, batch: ResponseBatch) -> tuple[Tensor, dict[str, Tensor]] | None:
        """The loss of a minibatch (`lgym.modules.token_objective`).

        Args:
            batch: B turns on the model's device.

        Returns:
            A scalar, and metrics; `None` where the policy has gone too far for another step.
        """
        config, critic = self.loss_config, self.critic
        output = self.policy.evaluate_actions(batch, entropy_gradient=config.entropy_coef > 0)
        terms = token_terms(config, batch, output)
        kl = masked_mean(terms.old_kl.detach(), batch.action_mask)
        braked = self._brakes(kl, batch.num_turns)
        self.steps_braked += braked
        if braked and config.old_kl_coef == 0:
            return None
        weights = term_weights(config, critic, warming_up=self.warming_up, braked=braked)
        total = policy_objective(config, batch, terms, weights, self.policy.max_new_tokens)
        metrics = terms.metrics | {self.kl_metric: kl}
        if batch.returns is not None:
            value_part, metrics["loss/value"] = value_objective(critic, batch, output, self.reward_scale)
            total = total + value_part
        if batch.metrics is not None:  # the first of its rollout: the policy is still the behavior policy
            difference = (output.logprobs.detach() - batch.old_logprobs) * batch.action_mask
            metrics[GAP] = difference.abs().max()
        assert isinstance(total, Tensor)
        metrics["loss/total"] = total
        return total, {name: value.detach() for name, value in metrics.items()}

    def sft_loss(self, batch: ResponseBatch) -> Tensor:
        """The mean negative log-likelihood per token of demonstrated turns."""
        return -(self.policy.evaluate_actions(batch).logprobs * batch.action_mask).sum() * batch.loss_scale

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

    def training_step(self, batch: ResponseBatch, batch_idx: int) -> Tensor | None:
        result = None if self.rollout_failed else self._combined_loss(batch)
        metrics = {} if result is None else result[1]
        if batch.metrics is not None:
            gap = {name: float(metrics.pop(name)) for name in (GAP,) if name in metrics}
            self.rollout_metrics = reduce_metrics({**batch.metrics, **gap})
            self.log_dict(self.rollout_metrics, on_step=False, on_epoch=True, batch_size=1)
        if result is None:
            return self.skipped_loss()
        loss = result[0]
        if distributed.all_reduce_any(~torch.isfinite(loss)):
            folder = self.trainer.log_dir or self.trainer.default_root_dir
            path = save_batch(folder, batch, self.tokenizer, metrics)
            self.fail(
                f"The loss is {float(loss.detach())} in rollout {self.current_epoch + 1}, minibatch "
                f"{batch_idx + 1}. Its turns are in {path}",
                "Resume with a lower learning rate, or with --trainer.gradient_clip_val 0.5.",
            )
            return self.skipped_loss()
        self.gradient_wanted = True
        if batch_idx == 0 and self.trainer.is_last_batch:  # the only step: `on_train_batch_end` logs it
            metrics.pop(self.kl_metric, None)
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=batch.num_turns, sync_dist=True)
        return loss + self.zero_of_all_parameters()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        only_step = batch_idx == 0 and self.trainer.is_last_batch and self.steps_taken > 0
        if only_step and self.current_epoch >= self.sft.rollouts:
            with self.inference() as policy:
                kl = masked_mean(behavior_kl(batch, policy.evaluate_actions(batch)), batch.action_mask)
            size = batch.num_turns
            self.log(self.kl_metric, kl, on_step=False, on_epoch=True, batch_size=size, sync_dist=True)

    def _combined_loss(self, batch: ResponseBatch) -> tuple[Tensor, dict[str, Tensor]] | None:
        """The algorithm's loss with the supervised one beside it, or at the start the supervised one
        alone."""
        if batch.supervised is not None and self.current_epoch < self.sft.rollouts:
            supervised = self.sft_loss(batch.supervised)
            return supervised, {"loss/sft": supervised.detach()}
        result = self.loss(batch)
        if result is None or batch.supervised is None or self.sft.coef == 0:
            return result
        supervised = self.sft_loss(batch.supervised)
        return result[0] + self.sft.coef * supervised, {**result[1], "loss/sft": supervised.detach()}

    @property
    def warming_up(self) -> bool:
        """True while rollouts train the value alone: the first `value_warmup`, behind those of
        `sft.rollouts`. (Asked when it learns: when a resumed run prepares a rollout, `rollouts_undone` is not
        restored yet.)"""
        return self.rollouts_learned < self.sft.rollouts + self.critic.value_warmup

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        save_checkpoint(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        load_checkpoint(self, checkpoint)
