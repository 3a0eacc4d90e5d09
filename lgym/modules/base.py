"""The LightningModule of every algorithm: it owns the model, its optimizer, evaluation and checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor

from lgym import distributed
from lgym.batch import ResponseBatch
from lgym.models import LLMConfig, build_llm
from lgym.models.fixed_precision import FixedPrecision
from lgym.models.value_head import ValueHead
from lgym.modules.checkpointing import (
    require_fitting,
    require_format,
    restore_rng_state,
    run_state,
    trained_state,
)
from lgym.modules.config_checks import require_imitation_alone, require_strategy
from lgym.modules.configs import CriticConfig, SFTConfig
from lgym.modules.learning_rates import (
    choice_optimizer,
    default_schedule,
    parameter_groups,
    text_optimizer,
)
from lgym.modules.metrics import reduce_metrics
from lgym.modules.nonfinite import save_batch
from lgym.modules.optimization import OptimizedModule
from lgym.phases import phase
from lgym.policies import CandidatePolicy, GenerationPolicy, LLMPolicy, ThinkPolicy
from lgym.rollout import Prompt, Rollout
from lgym.types import DISCOUNTS

AnyPolicy = CandidatePolicy | GenerationPolicy | ThinkPolicy | LLMPolicy
"""The policies by name, so that a YAML may leave out the class path, and any of a user's own."""

DEFAULT_LLM = LLMConfig()
NO_SFT = SFTConfig()
SFT_MINIBATCHES = 64
"""The fewest minibatches of imitation where nothing says how long it lasts."""

FEATURE_PROMPTS = 64
"""Prompts of a rollout that the value head's features are standardized by."""

GAP, TOTAL = "policy/logprob_diff_max", "loss/total"


class LLMLearner(FixedPrecision, OptimizedModule, ABC):
    """A language model under training. A subclass says what a rollout has to teach (`prepare`), and the loss
    of a minibatch of that."""

    has_critic = False
    """True if the model has a value head, which `critic` trains."""

    uses_replay = False
    """True if it learns from `data.replay`, transitions of earlier rollouts, and not from rollouts alone."""

    def __init__(
        self,
        llm: LLMConfig = DEFAULT_LLM,
        policy: AnyPolicy | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = default_schedule,
        sft: SFTConfig = NO_SFT,
    ) -> None:
        """
        Args:
            llm: the language model and how it is made trainable.
            policy: how it acts, by class_path: any of lgym.policies; by default it chooses between
                candidates.
            optimizer: any torch optimizer by class_path; null is AdamW with learning rate 8e-4, or 1e-4 where
                the policy writes text.
            lr_scheduler: any torch schedule but ReduceLROnPlateau by class_path, stepped once a rollout; by
                default two rollouts of warm-up and a fall to a tenth over the run, `trainer.max_epochs`. Null
                is none.
            sft: learning from demonstrations beside the algorithm's own loss.
        """
        super().__init__(optimizer, lr_scheduler)
        self.llm_config = llm
        self.policy = policy or CandidatePolicy()
        self.sft = sft
        self.critic = CriticConfig()
        self.strict_loading = False  # a checkpoint leaves the frozen base model out
        self.rollout_metrics: dict[str, float] = {}  # of the rollout at hand, over all processes

    @abstractmethod
    def prepare(self, rollout: Rollout) -> tuple[Any, dict[str, float]]:
        """Turn a rollout into a batch whose minibatches `loss` takes; with metrics of the rollout."""

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The loss of a minibatch.

        Args:
            batch: on the model's device.

        Returns:
            A scalar, or `None` for no step; and metrics.
        """

    def step_metrics(self, metrics: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The metrics of a minibatch that are logged with it."""
        return metrics

    @property
    def needs_whole_episodes(self) -> bool:
        """True if a rollout must not end within an episode."""
        return False

    @property
    def single_pass(self) -> bool:
        """True if nothing holds further passes over a rollout near the policy that played it."""
        return False

    @property
    def evaluates_rollout(self) -> bool:
        """True if `prepare` asks for all prompts, or responses, of a rollout once more."""
        return False

    def setup(self, stage: str) -> None:
        if stage == "fit":
            require_imitation_alone(self.sft.epochs, self.sft_rollouts)

    @contextmanager
    def reference(self) -> Iterator[LLMPolicy]:
        """The frozen reference as a policy: the model without its adapters."""
        with self.policy.llm.reference(), self.inference() as policy:
            yield policy

    @property
    def tokenizer(self) -> Any:
        return self.policy.llm.tokenizer

    @property
    def value_head(self) -> ValueHead:
        """The model's, where `has_critic`."""
        head = self.policy.llm.value_head
        assert head is not None
        return head

    @property
    def context_length(self) -> int:
        return self.policy.llm.context_length - self.policy.max_new_tokens

    @property
    def open_settings(self) -> Set[str]:
        """Settings that random play decides, of gamma, gae_lambda and demonstrations."""
        return frozenset()

    @property
    def usual_optimizer(self) -> OptimizerCallable:
        return text_optimizer if self.policy.generates_text else choice_optimizer

    def uses_sft(self, rollouts: int) -> bool:
        return self.sft.coef > 0 or rollouts < self.sft_rollouts

    @property
    def rollout_lr_scale(self) -> float:
        return self.sft_lr_scale if self.current_epoch < self.sft_rollouts else 1.0

    @property
    def sft_lr_scale(self) -> float:
        """The learning rate of rollouts that imitate alone, as a multiple of the others'."""
        given, usual = self.sft.lr_scale, 8.0 if self.make_optimizer is text_optimizer else 1.0
        return usual if given is None else given

    @property
    def value_lr_scale(self) -> float:
        """The learning rate of heads, as a multiple of the optimizer's."""
        given, usual = self.critic.value_lr_scale, 40.0 if self.make_optimizer is text_optimizer else 5.0
        return usual if given is None else given

    @property
    def sft_rollouts(self) -> int:
        if self.sft.rollouts is not None:
            return self.sft.rollouts
        return int(self.sft.coef == 0 and bool(self.data_setting("demonstrations", None)))

    def sft_epochs(self, minibatches: int, update_epochs: int) -> int:
        if self.sft.epochs is not None:
            return self.sft.epochs
        if self.sft.rollouts is not None:
            return update_epochs
        return max(update_epochs, -(-SFT_MINIBATCHES // minibatches))

    def data_setting(self, name: str, default: Any) -> Any:
        """A setting of the run's data module, which random play may decide; `default` without one."""
        trainer: Any = self._trainer
        return default if trainer is None else getattr(trainer.datamodule, name, default)

    def discount(self, name: str, given: float | None) -> float:
        """A discount per turn, `gamma` or `gae_lambda`: the given one, or that of the run."""
        return given if given is not None else float(self.data_setting(name, DISCOUNTS[name]))

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

    def behavior(self, rollouts: int) -> AbstractContextManager[LLMPolicy]:
        """The policy as it plays in training, likewise, after so many rollouts."""
        return self.inference()

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

    def update_features(self, prompts: Sequence[Prompt]) -> None:
        """Let the heads' features follow the hidden states at the ends of some of a rollout's prompts,
        of all processes."""
        everywhere = {prompt for shard in distributed.all_gather_object(list(prompts)) for prompt in shard}
        distinct = sorted(everywhere, key=lambda prompt: prompt.token_ids)
        count = min(FEATURE_PROMPTS, len(distinct))
        with self.inference() as policy:
            states = policy.prompt_states([distinct[n * len(distinct) // count] for n in range(count)])
        for head in self.policy.llm.heads:
            head.update_features(states)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self.policy.llm, self.make_optimizer, self.value_lr_scale)

    def sft_loss(self, batch: ResponseBatch) -> Tensor:
        """The mean negative log-likelihood per token of demonstrated turns."""
        return -(self.policy.evaluate_actions(batch).logprobs * batch.action_mask).sum() * batch.loss_scale

    def sft_objective(self, turns: ResponseBatch | None) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The loss of a rollout that learns nothing but demonstrated turns, and metrics; `None` while there
        are no turns."""
        if turns is None:
            return None, {}
        loss = self.sft_loss(turns)
        return loss, {"loss/sft": loss.detach()}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
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
        metrics = self.step_metrics(metrics, batch_idx)
        if TOTAL in metrics:  # a policy's has the minibatch's weight in it
            self.log(TOTAL, metrics.pop(TOTAL), on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
        turns = batch.num_turns if self.current_epoch >= self.sft_rollouts else 1  # those of a mere carrier
        self.log_dict(metrics, on_step=False, on_epoch=True, batch_size=turns, sync_dist=True)
        return loss + self.zero_of_all_parameters()

    def on_weights_put_back(self) -> None:
        """Drop what was derived from weights that the run has gone back behind."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = trained_state(self, checkpoint["state_dict"])
        checkpoint["lgym"] = run_state(self.llm_config.model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved = require_format(checkpoint)
        self.configure_model()
        require_fitting(self, checkpoint["state_dict"], saved["model"], self.llm_config.model)
        restore_rng_state(saved["rng"])
