"""The table of what a run's time was spent on."""

from __future__ import annotations

import logging

import pytest

from helpers.runs import lgym
from helpers.training import fit, tiny_config
from lgym.callbacks import PhaseProfiler
from lgym.modules import PPO


def rows_of(text: str) -> list[tuple[str, float]]:
    """Names and seconds below the heading."""
    lines = text.splitlines()
    [start] = [i for i, line in enumerate(lines) if line.startswith("phase ")]
    rows = [line.rsplit(maxsplit=2) for line in lines[start + 1 :] if line.endswith("%")]
    return [(name.strip(), float(seconds)) for name, seconds, _ in rows]


def test_phases_add_up_to_the_run(tmp_path, model_folder, caplog):
    """With an evaluation; a table that misses a phase would have its time in `all else`."""
    profiler = PhaseProfiler()
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer = {"profiler": profiler, "limit_val_batches": 1.0, "max_epochs": 4}
        fit(PPO(llm=tiny_config(model_folder)), tmp_path, data={"num_envs": 2}, trainer=trainer)
    rows = rows_of(caplog.text)
    names = [name for name, _ in rows]
    for phase, parts in {
        "playing": {"environments", "policy", "texts, tokens and records"},
        "learning": {"loss", "gradients", "steps"},
        "evaluating": {"environments", "policy", "texts, tokens and records"},
    }.items():
        at = names.index(phase)
        assert set(names[at + 1 : at + 4]) == parts
        assert sum(seconds for _, seconds in rows[at + 1 : at + 4]) == pytest.approx(rows[at][1], abs=0.2)
    assert {"loading the model", "preparing"} < set(names)
    assert names[-2:] == ["all else", "whole run"]
    whole = [seconds for name, seconds in rows if name in ("playing", "learning", "evaluating", "all else")]
    whole += [seconds for name, seconds in rows if name in ("loading the model", "preparing")]
    assert sum(whole) == pytest.approx(rows[-1][1], abs=0.4)


def test_the_command_line_takes_it_by_name(tmp_path, model_folder, caplog):
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        lgym("fit", tmp_path, model_folder, trainer__profiler="phases")
    assert {"playing", "learning", "checkpoints", "whole run"} < {name for name, _ in rows_of(caplog.text)}
