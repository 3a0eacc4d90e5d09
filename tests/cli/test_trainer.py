"""The trainer of the command line: the policy that a run ends with is evaluated."""

from __future__ import annotations

from types import SimpleNamespace

import lightning as L

from helpers.runs import lgym, scalars
from lgym.callbacks import RunSummary
from lgym.cli.trainer import FinalEvaluation


def test_the_last_rollout_is_evaluated_whatever_the_interval(tmp_path, model_folder, capsys):
    """A table of an older policy, or none at all, would not be the run's result."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, trainer__check_val_every_n_epoch=2)
    assert len(scalars(tmp_path)["val_sampled/return_mean"]) == 2  # after rollouts 2 and 3
    assert "this policy, sampled" in capsys.readouterr().out


def test_only_the_last_rollout_changes_the_interval():
    """Catches an evaluation after every rollout, and a callback that prints and steers as well."""
    for callback, expected in ((FinalEvaluation(), [7, 7, 1]), (RunSummary(), [7, 7, 7])):
        intervals = []
        trainer = SimpleNamespace(max_epochs=3, check_val_every_n_epoch=7)
        for trainer.current_epoch in range(3):
            callback.on_train_epoch_start(trainer, L.LightningModule())
            intervals.append(trainer.check_val_every_n_epoch)
        assert intervals == expected
