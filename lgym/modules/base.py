"""The LightningModule that every algorithm extends: it owns the model, its optimizer, evaluation and checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from lgym import ranks
from lgym.batch import EpisodeStatistics, ReplyBatch, Rollout, TurnBatch
from lgym.models import LLMConfig, build_llm
from lgym.modules.checkpointing import (
    CheckpointMismatchError,
    require_fitting,
    rng_state,
    set_rng_state,
    trained_state,
)
from lgym.modules.evaluation import MODES, EpisodeMetrics
from lgym.modules.faults import NonFiniteLossError, save_batch
from lgym.modules.learning_rates import follow, parameter_groups, rates_of, set_rates
from lgym.modules.pooled import pooled
from lgym.modules.settings import require_counts, require_scales, require_weights
from lgym.modules.sharding import require_whole_weights
from lgym.policies import CandidatePolicy, GenerationPolicy, ThinkPolicy
from lgym.types import TaughtTurn

FORMAT = 4
"""Of what lgym adds to a checkpoint, in the module's part and the data module's."""

DEFAULT_LLM = LLMConfig()

AnyPolicy = CandidatePolicy | GenerationPolicy | ThinkPolicy


class PolicyLearner(L.LightningModule, ABC):
    """A value-head LLM under training. A subclass says what to learn from a rollout (`prepare`) and how (`loss`)."""

    has_critic = True
    """Whether it learns values; otherwise the model has no value head."""

    def __init__(
        self,
        llm: LLMConfig,
        policy: AnyPolicy,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None,
        value_lr_scale: float,
    ) -> None:
        super().__init__()
        require_scales(value_lr_scale=value_lr_scale)
        self.value_lr_scale = value_lr_scale
        self.reward_scale = 1.0  # of what the value head gives, by rewards
        self.value_warmup = 0
        self.llm_config = llm
        self.policy = policy
        self.make_optimizer = optimizer
        self.make_lr_scheduler = lr_scheduler
        self.evaluations = nn.ModuleDict({mode: EpisodeMetrics() for mode in MODES})
        self.strict_loading = False  # a checkpoint leaves the frozen base model out
        self.learning_rate = 0.0
        self._steps = 0  # taken in the rollout in hand
        self.steps_braked = 0  # of its minibatches, those that did not push the policy on
        self._contributed = False  # whether anything has been learned from since the last one
        self.rollout_metrics: dict[str, float] = {}  # of the rollout in hand, told by `prepare`
        self.sft_coef, self.sft_rollouts = 0.0, 0
        self.taught: list[list[TaughtTurn]] = []  # some episodes of the rollout in hand, where tokens learn
        self.configured_rates: list[dict[str, float]] = []
        self.lr_factor = 1.0  # of the configured learning rates
        self.rollouts_undone = 0  # whose learning somebody took back
        self.on_fault: Callable[[str], None] | None = None  # told of what is not finite by whoever then puts it right
        self._faulty = False  # the rollout in hand is not learned from any more

    @abstractmethod
    def prepare(self, rollout: Rollout) -> Any:
        """What to learn from a rollout: a `TurnBatch`, or of a policy that speaks a `ReplyBatch`."""

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]] | None:
        """The loss of a minibatch, a scalar, with metrics; `None` where the rollout has nothing more to teach."""

    @abstractmethod
    def divergence(self, batch: Any) -> Tensor:
        """How far the policy is from the one that played a minibatch: the mean of `policy/approx_kl`, in nats."""

    @property
    def tokenizer(self) -> Any:
        return self.policy.llm.tokenizer

    @property
    def context_length(self) -> int:
        return self.policy.llm.context_length - self.policy.max_new_tokens

    @property
    def speaks(self) -> bool:
        return self.policy.speaks

    @property
    def chooses(self) -> bool:
        return self.policy.chooses

    @contextmanager
    def acting(self) -> Iterator[AnyPolicy]:
        """Within, the policy is as it acts: no gradients, no dropout, in the trainer's precision (without one, as it is)."""
        was_training = self.training
        precision = nullcontext() if self._trainer is None else self.trainer.precision_plugin.forward_context()
        self.eval()
        try:
            with torch.no_grad(), precision, self.policy.llm.frozen_weights():
                yield self.policy
        finally:
            self.train(was_training)

    def configure_model(self) -> None:
        if not hasattr(self.policy, "llm"):
            if self._trainer is not None:
                require_whole_weights(self.trainer.strategy)
            device = self.trainer.strategy.root_device if self._trainer is not None else torch.device("cpu")
            dtype = torch.get_default_dtype()
            self.policy.bind(build_llm(self.llm_config, dtype=dtype, device=device, value_head=self.has_critic))
        self.policy.llm.value_scale = 1.0 / self.reward_scale

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(parameter_groups(self.policy.llm, self.make_optimizer, self.value_lr_scale))
        scheduler = None if self.make_lr_scheduler is None else self.make_lr_scheduler(optimizer)
        self.configured_rates = rates_of(optimizer)
        if scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}}

    def training_step(self, batch: TurnBatch | ReplyBatch, batch_idx: int) -> Tensor | None:
        result = None if self._faulty else self._loss(batch)
        if batch_idx == 0:
            self.log_dict(pooled(self.rollout_metrics), on_step=False, on_epoch=True, batch_size=1)
        if result is None:
            return self._skipped()
        loss, metrics = result
        if ranks.any_of(~torch.isfinite(loss)):
            path = save_batch(self.trainer.log_dir or self.trainer.default_root_dir, batch, self.tokenizer, metrics)
            self._fail(
                f"The loss is {float(loss.detach())} in rollout {self.current_epoch + 1}, minibatch {batch_idx + 1}. "
                f"Its turns are in {path}",
                "Resume with a lower learning rate, or with --trainer.gradient_clip_val 0.5.",
            )
            return self._skipped()
        self._contributed = True
        if batch_idx == 0 and self.trainer.is_last_batch:  # before the only step; `on_train_batch_end` tells what that did
            metrics.pop("policy/approx_kl", None)
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=batch.weight, sync_dist=True)
        return loss + self.nothing()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0 and self.trainer.is_last_batch and self._steps and self.current_epoch >= self.sft_rollouts:
            with self.acting():
                moved = self.divergence(batch)
            self.log("policy/approx_kl", moved, on_step=False, on_epoch=True, batch_size=batch.weight, sync_dist=True)

    def _skipped(self) -> Tensor | None:
        """The loss of a minibatch that is not learned from: of several processes each has to have one."""
        return None if ranks.size() == 1 else self.nothing()  # type: ignore[return-value]

    def nothing(self) -> Tensor | float:
        """A zero that every trained parameter is in: processes that add up gradients wait for all of them, also for those
        that this loss, or this minibatch, leaves out."""
        if ranks.size() == 1:
            return 0.0
        return sum(0.0 * p.sum() for p in self.parameters() if p.requires_grad)

    def _loss(self, batch: TurnBatch | ReplyBatch) -> tuple[Tensor, dict[str, Tensor]] | None:
        """That of the algorithm with imitation beside it, or at the start that of imitation alone."""
        if batch.imitated is not None and self.current_epoch < self.sft_rollouts:
            imitation = self.imitation_loss(batch.imitated)
            return imitation, {"loss/sft": imitation.detach()}
        result = self.loss(batch)
        if result is None or batch.imitated is None or self.sft_coef == 0:
            return result
        imitation = self.imitation_loss(batch.imitated)
        return result[0] + self.sft_coef * imitation, {**result[1], "loss/sft": imitation.detach()}

    @property
    def imitates(self) -> bool:
        return self.sft_coef > 0 or self.sft_rollouts > 0

    def imitation_loss(self, batch: ReplyBatch) -> Tensor:
        """The mean negative log-likelihood per token of what is imitated."""
        return -(self.policy.likelihoods(batch).logprobs * batch.mask).sum() * batch.scale

    def imitate(self, sft_coef: float, sft_rollouts: int) -> None:
        """Sets the weight of the imitation loss, and for how many rollouts it is before that the only one."""
        require_weights(sft_coef=sft_coef)
        require_counts(sft_rollouts=sft_rollouts)
        self.sft_coef, self.sft_rollouts = sft_coef, sft_rollouts

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._faulty or (ranks.size() > 1 and not self._contributed):
            optimizer.zero_grad(set_to_none=True)  # else momentum would take a step
        self._contributed = False
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if not gradients:
            return
        norm = nn.utils.get_total_norm(gradients)
        if torch.isfinite(norm) and norm > 0:
            self._steps += 1
            self.log("optim/grad_norm", norm, on_step=False, on_epoch=True, batch_size=1)
        elif norm == 0:
            optimizer.zero_grad(set_to_none=True)  # nothing was learned, and momentum alone would move the policy
        elif self._trainer is None or getattr(self.trainer.precision_plugin, "scaler", None) is None:
            optimizer.zero_grad(set_to_none=True)  # an fp16 scaler takes no step by itself: so it finds its scale
            self._fail(
                f"The gradient's norm is {float(norm)} in rollout {self.current_epoch + 1}; no step was taken",
                "Resume with a lower learning rate.",
            )

    def _fail(self, what: str, way_out: str) -> None:
        """Ends the run; where somebody guards it, only the learning from the rollout in hand."""
        if self.on_fault is None:
            raise NonFiniteLossError(f"{what}; the last checkpoint is untouched. {way_out}")
        self._faulty = True
        self.on_fault(what)

    @property
    def rollouts_learned(self) -> int:
        """How many the weights have learned from, before the one in hand."""
        return self.current_epoch - self.rollouts_undone

    @property
    def warming_up(self) -> bool:
        """Whether only the value learns from the rollout in hand: the first `value_warmup`, behind those of imitation alone.
        (Asked when it learns: when a resumed run prepares a rollout, `rollouts_undone` is not restored yet.)"""
        return self.rollouts_learned < self.sft_rollouts + self.value_warmup

    def on_train_epoch_start(self) -> None:
        self._faulty = False
        self.learning_rate = float(self.trainer.optimizers[0].param_groups[0]["lr"])
        self._steps = self.steps_braked = 0

    def on_train_epoch_end(self) -> None:
        counts = {"optim/steps": float(self._steps), "optim/steps_braked": float(self.steps_braked)}
        self.log_dict({**counts, "optim/lr": self.learning_rate})

    def on_train_start(self) -> None:
        self.scale_learning_rates(self.lr_factor)

    def scale_learning_rates(self, factor: float) -> None:
        """From now on they are so many times the configured ones, at the same point of the schedule; a resumed optimizer
        brings its old ones along."""
        self.lr_factor = factor
        for optimizer in self.trainer.optimizers:
            set_rates(optimizer, self.configured_rates, factor)
        for config in self.trainer.lr_scheduler_configs:
            follow(config.scheduler)

    # -- evaluation -----------------------------------------------------------------------------------------------------

    def validation_step(self, batch: EpisodeStatistics, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluations[MODES[dataloader_idx]].update(batch)  # type: ignore[operator]

    def test_step(self, batch: EpisodeStatistics, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluations[MODES[dataloader_idx]].update(batch)  # type: ignore[operator]

    def on_validation_epoch_end(self) -> None:
        self._log_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._log_evaluation("test")

    def _log_evaluation(self, stage: str) -> None:
        for mode, metrics in self.evaluations.items():
            for name, value in metrics.compute().items():  # type: ignore[operator]
                self.log(f"{stage}_{mode}/{name}", value.float(), sync_dist=False)
            metrics.reset()  # type: ignore[operator]

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = trained_state(self, checkpoint["state_dict"])
        checkpoint["lgym"] = {"format": FORMAT, "model": self.llm_config.model, "rng": ranks.everyone(rng_state())}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = checkpoint.get("lgym")
        if saved is None:
            raise CheckpointMismatchError("This is not a checkpoint of lgym: it does not say which model it belongs to.")
        if saved["format"] != FORMAT:
            raise CheckpointMismatchError(
                f"The checkpoint has format {saved['format']}, of another version of lgym; this one reads {FORMAT}. Go on "
                "with the version that wrote it, or start without --ckpt_path."
            )
        self.configure_model()
        require_fitting(self, checkpoint["state_dict"], saved["model"], self.llm_config.model)
        set_rng_state(saved["rng"][ranks.rank() % len(saved["rng"])])
