"""A run in figures."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from helpers.records import RECORD
from helpers.runs import lgym, scalars
from lgym.cli.bench.records import read_all, record_of, write
from lgym.cli.run_metrics import Entry, over_turns
from lgym.types import ConfigError


def test_a_run_is_recorded_as_it_went(tmp_path, model_folder):
    lgym("fit", tmp_path, model_folder, seed_everything=5)
    record = record_of(tmp_path / "version_0", "echo")
    logged = scalars(tmp_path)
    assert (record.name, record.seed, record.rollouts, record.turns) == ("echo", 5, 2, 64)
    assert record.subject["env"] == "Echo-v0"
    assert record.subject["algorithm"] == "PPO"
    assert record.subject["reference_returns"]["optimal"] == 1.0
    assert record.versions["torch"]
    turns, values = zip(*record.curves["val_sampled/return_mean"], strict=True)
    assert turns == (0, 32, 64)
    assert values == pytest.approx(list(logged["val_sampled/return_mean"].values()), rel=1e-4)
    assert [turns for turns, _ in record.curves["rollout/return_mean"]] == [32, 64]
    spent = ("rollout", "preparation", "update", "evaluation")
    seconds = sum(value for name in spent for value in logged[f"time/{name}_seconds"].values())
    assert record.minutes == pytest.approx(seconds / 60, abs=0.05)


def test_a_resumed_run_is_one_record_with_two_sessions(tmp_path, model_folder):
    """Each session says where it began; the run is finished when the newest one is."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, ckpt_path="last")
    known = json.loads((tmp_path / "version_0" / "run.json").read_text())
    assert len(known["sessions"]) == 2
    assert known["finished"] is True
    record = record_of(tmp_path / "version_0", "echo")
    assert [turns for turns, _ in record.curves["rollout/return_mean"]] == [32, 64, 96]
    assert record.curves["val_sampled/return_mean"][0][0] == 0


def test_a_run_that_is_interrupted_is_not_finished(tmp_path, model_folder):
    with pytest.raises(SystemExit):
        lgym("fit", tmp_path, model_folder, trainer__callbacks="helpers.runs.InterruptedRun")
    known = json.loads((tmp_path / "version_0" / "run.json").read_text())
    assert known["finished"] is False


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(0, 0.5), (3, 0.6), (7, 0.7)], [(0, 0.5), (32, 0.6), (64, 0.7)]),
        ([(0, 0.5), (0, 0.6), (1, 0.7)], [(0, 0.5), (8, 0.6), (16, 0.7)]),
        ([(3, 0.6)], [(32, 0.6)]),
    ],
    ids=["several steps a rollout", "one step a rollout", "none before the first step"],
)
def test_an_evaluation_is_at_the_turns_that_were_learned_from(entries, expected):
    turns = {3: 32, 7: 64} if entries[-1][0] in (3, 7) else {0: 8, 1: 16}
    written = [Entry(time, step, value) for time, (step, value) in enumerate(entries)]
    assert over_turns(written, turns) == expected


def test_records_are_read_as_they_were_written(tmp_path):
    for record in (RECORD, replace(RECORD, seed=1), replace(RECORD, name="cliff")):
        write(record, tmp_path)
    assert [(r.name, r.seed) for r in read_all(tmp_path)] == [("cliff", 3), ("lake", 1), ("lake", 3)]
    assert read_all(tmp_path)[-1] == RECORD


def test_what_is_no_run_or_record_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"has no run\.json"):
        record_of(tmp_path, "echo")
    (tmp_path / "broken.json").write_text('{"name": "lake"}')
    with pytest.raises(ConfigError, match=r"broken\.json is no record"):
        read_all(tmp_path)
