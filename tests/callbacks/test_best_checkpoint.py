"""The best evaluation's checkpoint, and a run that ends when evaluations in a row are good enough."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from helpers.runs import QUICK, assert_same, checkpoint, lgym, scalars
from lgym.callbacks import BestCheckpoint, TimeLimit
from lgym.modules.evaluation import EpisodeMetrics
from lgym.types import ConfigError

EVERY = {**QUICK, "trainer__check_val_every_n_epoch": 1}


@pytest.fixture
def evaluations(monkeypatch):
    """Mean returns that evaluations are said to have, in both modes."""
    returns: list[float] = []
    sound, asked = EpisodeMetrics.compute, [0]

    def compute(self):
        result = sound(self)
        value = returns[min(asked[0] // 2, len(returns) - 1)]
        asked[0] += 1
        return result | {"return_mean": torch.tensor(value)}

    monkeypatch.setattr(EpisodeMetrics, "compute", compute)
    return returns


def best(root):
    return torch.load(root / "version_0" / "checkpoints" / "best.ckpt", weights_only=True)


def test_the_best_evaluation_is_kept(tmp_path, model_folder, evaluations, capsys):
    """Rollout 2 of three; the evaluation before the first step has no checkpoint."""
    evaluations += [9.0, 0.1, 0.5, 0.3]
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, **EVERY)
    said = capsys.readouterr().out
    assert "(val_sampled/return_mean +0.5000 after rollout 2; --ckpt_path best)" in said
    assert best(tmp_path)["epoch"] == 1
    assert checkpoint(tmp_path)["epoch"] == 2
    assert (
        checkpoint(tmp_path)["callbacks"]["BestCheckpoint"] == best(tmp_path)["callbacks"]["BestCheckpoint"]
    )
    assert not any("embed_tokens" in name for name in best(tmp_path)["state_dict"])
    lgym("validate", tmp_path, model_folder, ckpt_path="best", **QUICK)


def test_a_resumed_run_knows_which_was_best(tmp_path, model_folder, evaluations):
    """Rollout 1; what the resumed run reaches is less."""
    evaluations += [0.0, 0.5, 0.3, 0.4]
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, **EVERY)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, ckpt_path="last", **EVERY)
    assert best(tmp_path)["epoch"] == 0
    assert checkpoint(tmp_path)["callbacks"]["BestCheckpoint"]["score"] == 0.5


def test_the_best_of_a_run_in_another_folder_is_its_own(tmp_path, model_folder, evaluations):
    """The score went along and the file did not, so that nothing was kept there."""
    evaluations += [0.0, 0.5, 0.3]
    one, other = tmp_path / "one", tmp_path / "other"
    lgym("fit", one, model_folder, trainer__max_epochs=1, **EVERY)
    last = one / "version_0" / "checkpoints" / "last.ckpt"
    lgym("fit", other, model_folder, trainer__max_epochs=2, ckpt_path=last, **EVERY)
    assert best(other)["callbacks"]["BestCheckpoint"]["score"] == pytest.approx(0.3)


def test_an_evaluation_out_of_turn_can_be_the_best(tmp_path, model_folder, evaluations):
    """After the last checkpoint: it is that one, which knows of it, and none of the user's that is older."""
    evaluations += [0.0, 0.3, 0.5]
    own = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"every_n_epochs": 2}}
    lgym(
        "fit",
        tmp_path,
        model_folder,
        trainer__max_epochs=3,
        trainer__callbacks=json.dumps([own]),
        **EVERY | {"trainer__check_val_every_n_epoch": 2},
    )
    state = {"monitor": "val_sampled/return_mean", "score": 0.5, "rollouts": 3}
    assert checkpoint(tmp_path)["callbacks"]["BestCheckpoint"] == state
    assert_same(best(tmp_path), checkpoint(tmp_path))


def test_other_weights_than_those_of_the_last_checkpoint_are_not_the_best(
    tmp_path, model_folder, evaluations, monkeypatch
):
    """A session goes on from an older checkpoint, and its time is over before it has a rollout."""
    evaluations += [0.0, 0.5, 0.3, 0.9]
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **EVERY)
    monkeypatch.setattr(TimeLimit, "time_elapsed", lambda self, stage="train": 3600.0)
    limited = {**EVERY, "trainer__max_time": "00:00:00:01"}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, ckpt_path="best", **limited)
    assert best(tmp_path)["epoch"] == 0


def test_without_evaluations_nothing_is_best(tmp_path, model_folder):
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, trainer__limit_val_batches=0)
    with pytest.raises(SystemExit):
        lgym("validate", tmp_path, model_folder, ckpt_path="best")


def stopping(**settings):
    init_args = {"threshold": 0.4, **settings}
    return json.dumps([{"class_path": "lgym.callbacks.StopOnReturnThreshold", "init_args": init_args}])


@pytest.mark.parametrize(("evaluations_needed", "rollouts"), [(1, 1), (2, 4)])
def test_two_evaluations_in_a_row_end_a_run(
    tmp_path, model_folder, evaluations, evaluations_needed, rollouts
):
    """After rollouts 3 and 4; the first reaches the threshold too, and the second does not."""
    evaluations += [0.0, 0.5, 0.3, 0.4, 0.6, 0.7]
    callbacks = stopping(evaluations=evaluations_needed)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=6, trainer__callbacks=callbacks, **EVERY)
    assert len(scalars(tmp_path)["rollout/return_mean"]) == rollouts


def test_the_count_goes_on_in_a_resumed_run(tmp_path, model_folder, evaluations):
    """One evaluation before, one after; and one out of turn, at the end of the first part, is none."""
    evaluations += [0.0, 0.5, 0.5, 0.5]
    options = {**EVERY, "trainer__callbacks": stopping(), "trainer__check_val_every_n_epoch": 2}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, **options)
    assert checkpoint(tmp_path)["callbacks"]["StopOnReturnThreshold"] == {"reached": 1, "threshold": 0.4}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=9, ckpt_path="last", **options)
    assert checkpoint(tmp_path)["epoch"] == 3


def test_a_run_that_has_reached_its_threshold_is_over(tmp_path, model_folder, evaluations, capsys):
    """Resumed, it played one more rollout; with a higher threshold it goes on."""
    evaluations += [0.0, 0.5, 0.5, 0.5, 0.5, 0.9, 0.9]
    options = {**EVERY, "trainer__max_epochs": 9, "ckpt_path": "last"}
    lgym("fit", tmp_path, model_folder, **options | {"ckpt_path": None, "trainer__callbacks": stopping()})
    assert checkpoint(tmp_path)["epoch"] == 1
    capsys.readouterr()
    lgym("fit", tmp_path, model_folder, trainer__callbacks=stopping(), **options)
    assert "Nothing was left to do after 2 rollouts" in capsys.readouterr().out
    assert len(scalars(tmp_path)["rollout/return_mean"]) == 2
    lgym("fit", tmp_path, model_folder, trainer__callbacks=stopping(threshold=0.8), **options)
    assert len(scalars(tmp_path)["rollout/return_mean"]) == 6


def test_settings_that_cannot_be_are_refused(tmp_path, model_folder):
    from lgym.callbacks import StopOnReturnThreshold

    with pytest.raises(ConfigError, match="evaluations is 0; it must be 1 or more"):
        StopOnReturnThreshold(0.5, evaluations=0)


def test_a_monitor_that_nobody_logs_is_named():
    """A run without a best checkpoint ended as if nothing were missing."""
    trainer = SimpleNamespace(
        state=SimpleNamespace(fn="fit"),
        sanity_checking=False,
        current_epoch=0,
        callback_metrics={"val_greedy/return_mean": torch.tensor(1.0)},
    )
    best = BestCheckpoint("val_sampled/success_rate")
    with pytest.raises(
        ConfigError, match="'val_sampled/success_rate', and the evaluation logs val_greedy/ret"
    ):
        best.on_validation_end(trainer, None)
