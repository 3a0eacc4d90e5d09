"""The folder of a run, and the settings that are kept there."""

from __future__ import annotations

import yaml

from helpers.runs import lgym


def test_a_run_goes_on_in_its_folder_and_its_settings_begin_anew(tmp_path, model_folder, monkeypatch):
    """Catches a variable that the logger alone replaces, so that no checkpoint was found; and a `config.yaml`
    with the checkpoint that a session went on from, by which every further run would."""
    monkeypatch.setenv("LGYM_TEST_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    short = {"trainer__num_sanity_val_steps": 0, "data__episodes_per_rollout": 8, "data__eval_episodes": 2}
    lgym("fit", "$LGYM_TEST_RUNS/runs", model_folder, trainer__max_epochs=1, **short)
    lgym("fit", "$LGYM_TEST_RUNS/runs", model_folder, trainer__max_epochs=2, ckpt_path="last", **short)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["version_0"]
    settings = yaml.safe_load((tmp_path / "runs" / "version_0" / "config.yaml").read_text())
    assert settings["trainer"]["max_epochs"] == 2
    assert settings["ckpt_path"] is None
