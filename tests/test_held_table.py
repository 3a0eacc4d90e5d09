"""The table that a page gets from runs' own records."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from torch.utils.tensorboard import SummaryWriter

SCRIPT = Path(__file__).parents[1] / "scripts" / "held_table.py"
specification = importlib.util.spec_from_file_location("held_table", SCRIPT)
held_table = importlib.util.module_from_spec(specification)
specification.loader.exec_module(held_table)


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "lake" / "version_0"
    with SummaryWriter(str(folder)) as writer:
        for step, value in ((0, 0.1), (5, 0.9), (10, 0.8)):
            writer.add_scalar("val_sampled/return_mean", value, step, walltime=1000 + 60 * step)
            writer.add_scalar("val_greedy/return_mean", value + 0.05, step, walltime=1000 + 60 * step)
        for rollout, value in enumerate((0.1, 0.2, 0.95, 0.7, 0.9, 0.8, 0.7), start=1):
            writer.add_scalar("rollout/total_turns", 512 * rollout, rollout, walltime=1000)
            writer.add_scalar("rollout/return_mean", value, rollout, walltime=1000)
    data = {"env": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed_everything": 3, "data": data}))
    sessions = [{"machine": "a slow one"}, {"machine": "Processor X, 2 cores, 1 thread"}]
    (folder / "run.json").write_text(json.dumps({"sessions": sessions}))
    return folder


def test_what_was_held_is_counted_from_where_it_was_learned(run):
    """From 0.1 to 0.95 the third of seven rollouts is the first at 95 % of the way, 0.9075; the last third is 0.8
    and 0.7."""
    assert held_table.row(run) == (
        "`FrozenLake-v1`, is_slippery: False",
        "3",
        "1 thread",
        "7",
        "3",
        "0.95",
        "0.70",
        "0.75",
        "Processor X, 2 cores",
    )


def test_the_table_is_replaced_and_the_text_around_it_stays(run, tmp_path, monkeypatch):
    """Catches a second table below the first one."""
    page = tmp_path / "page.md"
    page.write_text("# Results\n")
    monkeypatch.setattr("sys.argv", ["held_table.py", str(page), str(run)])
    for text in ("# Results", "# Other results"):
        held_table.main()
        page.write_text(page.read_text().replace("# Results", text))
    assert page.read_text().startswith("# Other results\n")
    assert page.read_text().count("FrozenLake-v1") == 1


def test_rows_of_other_runs_stay():
    """Catches a table that has lost all runs whose folders are gone; runs are told apart by environment, seed and
    threads."""
    old = [
        ("Lake", "0", "1 thread", "old"),
        ("Lake", "1", "1 thread", "old"),
        ("Taxi", "0", "1 thread", "old"),
    ]
    new = [
        ("Lake", "1", "1 thread", "new"),
        ("Lake", "2", "1 thread", "new"),
        ("Cliff", "0", "1 thread", "new"),
    ]
    assert held_table.merged(old, new) == [old[0], *new[:2], old[2], new[2]]
    kind = held_table.HELD
    begin, end = kind.marks
    page = f"{begin}\n{held_table.markdown(kind, [kind.header])}\n{end}"
    assert held_table.written(kind, page) == [kind.header]
    assert held_table.written(kind, "a page without a table") == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="give the folder of a run"):
        held_table.row(tmp_path)
