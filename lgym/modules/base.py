"""The LightningModule of every algorithm: it owns the model, its optimizer, evaluation and checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym import distributed
from lgym.batch import ResponseBatch
from lgym.functional import clip_fraction, masked_mean, policy_gradient_loss, ppo_clip_loss
from lgym.models import LLMConfig, build_llm
from lgym.modules.advantages import Advantages
from lgym.modules.checkpointing import (
    require_fitting,
    require_format,
    restore_rng_state,
    run_state,
    trained_state,
)
from lgym.modules.config_checks import require_reference, require_single_pass, require_strategy
from lgym.modules.configs import CLIPPED, CriticConfig, LossConfig, SFTConfig
from lgym.modules.groups import require_comparable, require_groups, zero_variance_groups
from lgym.modules.learning_rates import default_optimizer, parameter_groups
from lgym.modules.metrics import advantage_reliability, reduce_metrics, rollout_metrics
from lgym.modules.nonfinite import save_batch
from lgym.modules.optimization import OptimizedModule
from lgym.modules.preparation import turns_to_learn_from, with_advantages, without_idle_turns
from lgym.modules.response_batch import RolloutTurns, token_traces
from lgym.modules.token_objective import (
    behavior_kl,
    divergences,
    policy_objective,
    term_weights,
    value_objective,
)
from lgym.phases import phase
from lgym.policies import CandidatePolicy, GenerationPolicy, LLMPolicy, ThinkPolicy
from lgym.rollout import Rollout

AnyPolicy = CandidatePolicy | GenerationPolicy | ThinkPolicy | LLMPolicy
"""The policies by name, so that a YAML may leave out the class path, and any of a user's own."""

DEFAULT_LLM = LLMConfig()
NO_SFT = SFTConfig()
GAP = "policy/logprob_diff_max"


class PolicyLearner(OptimizedModule, ABC):
    """A language model under training. A subclass estimates each turn's advantage (`estimate_advantages`)."""

    has_critic = False
    """True if the model has a value head, which `critic` trains."""

    compares_groups = False
    """True if advantages compare the episodes of a group."""

    open_discounts: Set[str] = frozenset()  # of `gamma` and `gae_lambda`, for random play to decide

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

    @contextmanager
    def reference(self) -> Iterator[LLMPolicy]:
        """The frozen reference as a policy: the model without its adapters."""
        with self.policy.llm.reference(), self.inference() as policy:
            yield policy

    @property
    def tokenizer(self) -> Any:
        return self.policy.llm.tokenizer

    @property
    def context_length(self) -> int:
        return self.policy.llm.context_length - self.policy.max_new_tokens

    @property
    def needs_whole_episodes(self) -> bool:
        """True if a rollout must not end within an episode."""
        return self.compares_groups

    @property
    def single_pass(self) -> bool:
        """True if nothing holds further passes over a rollout near the policy that played it."""
        return self.loss_config.clip_low is None

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
            with torch.inference_mode(False), torch.no_grad(), precision, self.policy.llm.frozen_weights():
                yield self.policy
        finally:
            self.train(was_training)
        distributed.meet()

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.compares_groups:
            require_groups(self.trainer, type(self).__name__)
        if stage == "fit" and self.single_pass:
            passes = getattr(self.trainer.datamodule, "update_epochs", 1)  # type: ignore[attr-defined]
            require_single_pass(passes, type(self).__name__)

    def configure_model(self) -> None:
        if not hasattr(self.policy, "llm"):
            if self._trainer is not None:
                require_strategy(self.trainer.strategy, self.llm_config)
            device = self.trainer.strategy.root_device if self._trainer is not None else torch.device("cpu")
            dtype = torch.get_default_dtype()
            config = self.llm_config.for_text() if self.policy.generates_text else self.llm_config
            with phase("loading the model"):
                llm = build_llm(config, dtype=dtype, device=device, value_head=self.has_critic)
            self.policy.bind(llm)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.policy.llm, self.make_optimizer, self.critic.value_lr_scale)

    def prepare(self, rollout: Rollout) -> tuple[ResponseBatch, dict[str, float]]:
        """The turns of a rollout with their advantages, sorted by prompt, and the rollout's metrics."""
        turns = turns_to_learn_from(rollout, self.loss_config, self.reference)
        metrics = rollout_metrics(turns)
        if self.compares_groups:
            require_comparable(turns, type(self).__name__)
            metrics["rollout/frac_reward_zero_std"] = zero_variance_groups(turns)
        estimate = self.estimate_advantages(turns)
        batch = with_advantages(turns, estimate)
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
            A scalar, or `None` where the policy has gone too far for another step; and metrics.
        """
        if batch.supervised is not None and self.current_epoch < self.sft.rollouts:
            supervised = self.sft_loss(batch.supervised)
            return supervised, {"loss/sft": supervised.detach()}
        config, mask, metrics = self.loss_config, batch.action_mask, {}
        output = self.policy.evaluate_actions(batch, entropy_gradient=config.entropy_coef > 0)
        logprobs, old_logprobs = output.logprobs, batch.old_logprobs.to(output.logprobs.dtype)
        advantages = batch.advantages.to(logprobs.dtype)
        if config.clip_low is None or config.clip_high is None:
            policy_loss = policy_gradient_loss(logprobs, advantages)
        else:
            clips = {"clip_low": config.clip_low, "clip_high": config.clip_high}
            policy_loss = ppo_clip_loss(logprobs, old_logprobs, advantages, **clips)
            metrics["policy/clip_fraction"] = masked_mean(
                clip_fraction(logprobs, old_logprobs, **clips), mask
            )
        terms = {"policy": policy_loss, "entropy": output.entropy, **divergences(config, batch, output)}
        names = {"policy": "loss/policy", "entropy": "policy/entropy", "ref_kl": "policy/ref_kl"}
        for name, term in terms.items():
            metrics[names.get(name, self.kl_metric)] = masked_mean(term.detach(), mask)
        braked = self._brakes(metrics[self.kl_metric], batch.num_turns)
        self.steps_braked += braked
        if braked and config.old_kl_coef == 0:
            return None, {}
        if config.old_kl_target is not None:
            terms["old_kl"] = terms["old_kl"] * (1 + terms["old_kl"] / config.old_kl_target)
        weights = term_weights(config, self.critic, warming_up=self.warming_up, braked=braked)
        total = policy_objective(config, batch, terms, weights, self.policy.max_new_tokens)
        if batch.returns is not None:
            value_head = self.policy.llm.value_head
            assert value_head is not None
            value_part, metrics["loss/value"] = value_objective(self.critic, batch, output, value_head.std)
            total = total + value_part
        if batch.supervised is not None and self.sft.coef > 0:
            metrics["loss/sft"] = self.sft_loss(batch.supervised)
            total = total + self.sft.coef * metrics["loss/sft"]
        if batch.metrics is not None:  # the first of its rollout: the policy is still the behavior policy
            metrics[GAP] = ((logprobs - batch.old_logprobs) * mask).abs().max()
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
        with phase("learning/loss"):
            loss, metrics = (None, {}) if self.rollout_failed else self.loss(batch)
        if batch.metrics is not None:
            gap = {name: float(metrics.pop(name)) for name in (GAP,) if name in metrics}
            self.rollout_metrics = reduce_metrics({**batch.metrics, **gap})
            self.log_dict(self.rollout_metrics, on_step=False, on_epoch=True, batch_size=1)
        if loss is None:
            return self.skipped_loss()
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

    @property
    def warming_up(self) -> bool:
        """True while rollouts train the value alone: the first `value_warmup`, behind those of
        `sft.rollouts`. (Asked when it learns: when a resumed run prepares a rollout, `rollouts_undone` is not
        restored yet.)"""
        return self.rollouts_learned < self.sft.rollouts + self.critic.value_warmup

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = trained_state(self, checkpoint["state_dict"])
        checkpoint["lgym"] = run_state(self.llm_config.model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = require_format(checkpoint)
        self.configure_model()
        require_fitting(self, checkpoint["state_dict"], saved["model"], self.llm_config.model)
        restore_rng_state(saved["rng"])
