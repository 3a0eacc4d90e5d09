"""Fixtures: `lgym check` on the tiny model, and processes of `lgym fit` that only pretend."""

from __future__ import annotations

import sys

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


@pytest.fixture
def pretended_fit(tmp_path, monkeypatch):
    """Lets a shell script take the place of `lgym fit` in processes of their own."""

    def pretend(script):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))

    return pretend
