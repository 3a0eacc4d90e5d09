"""`run.json`, a run's record, is there as a whole."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helpers.runs import lgym
from lgym.callbacks.provenance import commit, read_run
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


def test_a_commit_is_marked_where_anything_but_documents_differs(tmp_path):
    """`lgym bench` writes records and pages between one run and the next."""
    assert commit(tmp_path) is None
    (tmp_path / "docs").mkdir()
    files = [tmp_path / name for name in ("code.py", "README.md", "docs/record.json")]
    for file in files:
        file.write_text("1")
    who = ["-c", "user.name=me", "-c", "user.email=me@localhost"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "1"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    known = commit(tmp_path)
    assert known is not None
    assert len(known) == 9
    for file in files[1:]:
        file.write_text("2")
    assert commit(tmp_path / "docs") == known
    files[0].write_text("2")
    assert commit(tmp_path / "docs") == f"{known}+"
