"""A rollout's peculiarities, in words."""

import lightning as L

from lgym.modules import LLMLearner, PolicyLearner
from lgym.terminal import say


class RolloutNotes(L.Callback):
    """Says after a rollout that no episode has ended yet, or that there was nothing to imitate, and of the
    first one that `target_kl` braked how many of its steps."""

    def __init__(self) -> None:
        self._braked = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not isinstance(pl_module, LLMLearner):
            return
        metrics = pl_module.rollout_metrics
        if metrics and "rollout/return_mean" not in metrics:
            turns = metrics["rollout/total_turns"]
            say(f"\nRollout {trainer.current_epoch + 1}: no episode has ended yet, in {turns:,.0f} turns.")
        if trainer.current_epoch < pl_module.sft_rollouts and not pl_module.steps_taken:
            say(
                f"\nRollout {trainer.current_epoch + 1}: nothing to imitate has come so far, and nothing was "
                "learned: data.self_imitation found no episode worth it, data.dagger's expert had no answer."
            )
        if isinstance(pl_module, PolicyLearner) and pl_module.steps_braked and not self._braked:
            self._braked = True
            done = "left out the policy's part of" if pl_module.loss_config.old_kl_coef > 0 else "skipped"
            steps = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            say(
                f"\nRollout {trainer.current_epoch + 1}: the brake (target_kl) {done} "
                f"{pl_module.steps_braked} of {steps} steps; optim/steps_braked counts those of later ones."
            )
