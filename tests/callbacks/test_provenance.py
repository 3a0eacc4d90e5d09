"""`run.json`, a run's record, is there as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.runs import lgym
from lgym.callbacks.provenance import read_run
from test_resume import IMITATING


def test_a_record_that_is_torn_as_it_is_written_leaves_the_one_before(tmp_path, model_folder, monkeypatch):
    """A run killed within the write could be neither resumed nor recorded."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    before = read_run(tmp_path / "version_0")
    write = Path.write_text

    def torn(file, text, *args, **kwargs):
        if not file.name.startswith("run.json"):
            return write(file, text, *args, **kwargs)
        write(file, text[: len(text) // 2], *args, **kwargs)
        raise InterruptedError

    monkeypatch.setattr(Path, "write_text", torn)
    with pytest.raises(InterruptedError):
        lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, ckpt_path="last")
    assert read_run(tmp_path / "version_0") == before


@pytest.mark.parametrize(("rollouts", "algorithm"), [(1, "PPO"), (2, "SFT")])
def test_a_run_that_only_imitates_is_told_by_that(tmp_path, model_folder, rollouts, algorithm):
    """Else a table would credit PPO with what expert iteration has learned."""
    options = {**IMITATING, "model__init_args__sft__rollouts": rollouts}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **options)
    assert read_run(tmp_path / "version_0")["algorithm"] == algorithm
