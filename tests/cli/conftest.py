"""Fixture: `lgym check` on the tiny model."""

from __future__ import annotations

import pytest

from helpers.runs import lgym

LOOK = {"trainer__enable_progress_bar": None, "trainer__max_epochs": None, "random_episodes": 50}


@pytest.fixture
def checked(tmp_path, model_folder, capfd):
    """Runs `check` on Echo with options; its exit status and what it said."""

    def run(model=model_folder, config=None, **options):
        looked = LOOK if config is None else {"random_episodes": 50}
        status = 0
        try:
            lgym("check", tmp_path / "runs", model, config, **looked | options)
        except SystemExit as stop:
            status = stop.code
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        assert not (tmp_path / "runs").exists()
        return status, said.out + said.err

    return run
