"""Checkpoints that cannot be gone on from."""

from __future__ import annotations

import pytest
import torch

from helpers.runs import lgym


def test_another_versions_checkpoint_is_refused(tmp_path, model_folder, capsys):
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    path = tmp_path / "version_0" / "checkpoints" / "last.ckpt"
    saved = torch.load(path, weights_only=True)
    saved["lgym"]["format"] = 1
    torch.save(saved, path)
    with pytest.raises(SystemExit) as stop:
        lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, ckpt_path="last")
    assert stop.value.code == 1
    assert "has format 1, of another version of lgym; this one reads 4" in capsys.readouterr().err
