"""The last checkpoint, beside those that a user asks Lightning for."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from helpers.runs import assert_same, checkpoint, lgym
from lgym.callbacks.last_checkpoint import save_between_rollouts
from lgym.types import ConfigError


def test_a_checkpoint_of_ones_own_is_as_whole_as_the_last_one(tmp_path, model_folder):
    """It took the place of the last one, and was written within the evaluation: a run that went on from it
    lost a rollout."""
    own = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"filename": "own"}}
    settings = {"trainer__check_val_every_n_epoch": 2, "trainer__callbacks": json.dumps([own])}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **settings)
    last = checkpoint(tmp_path)
    saved = torch.load(tmp_path / "version_0" / "checkpoints" / "own.ckpt", weights_only=True)
    for each in (last, saved):  # of their own files each knows another
        each["callbacks"] = {k: v for k, v in each["callbacks"].items() if "Checkpoint{" not in k}
    assert saved["callbacks"]["BestCheckpoint"]["score"] is not None
    assert_same(saved, last)


@pytest.mark.parametrize(
    "settings",
    [
        {"every_n_train_steps": 4},
        {"train_time_interval": timedelta(minutes=5)},
        {"save_on_exception": True},
        {"save_last": True},
        {"save_on_train_epoch_end": False},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_checkpoints_within_a_rollout_are_refused(settings):
    """No run goes on exactly from them."""
    with pytest.raises(ConfigError, match=f"ModelCheckpoint's {next(iter(settings))}.* every_n_epochs"):
        save_between_rollouts([ModelCheckpoint(**settings)])
