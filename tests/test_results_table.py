"""The table that a page gets from runs' own records."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from torch.utils.tensorboard import SummaryWriter

SCRIPT = Path(__file__).parents[1] / "scripts" / "results_table.py"
specification = importlib.util.spec_from_file_location("results_table", SCRIPT)
results_table = importlib.util.module_from_spec(specification)
specification.loader.exec_module(results_table)


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


def test_a_row_is_what_the_run_recorded(run):
    """Catches the first evaluation taken for the last, or turns of one rollout for those of the run."""
    assert results_table.row(run) == (
        "`FrozenLake-v1`, is_slippery: False",
        "3",
        "10.0",
        "7",
        "3,584",
        "0.10",
        "0.90",
        "0.80",
        "0.85",
        "0.95",
        "0.75",
    )


def test_what_was_held_is_counted_from_where_it_was_learned(run):
    """From 0.1 to 0.95 the third of seven rollouts is the first at 95 % of the way, 0.9075; the last third is 0.8
    and 0.7."""
    assert results_table.held_row(run) == (
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


def test_both_tables_have_a_place_of_their_own(run, tmp_path, monkeypatch):
    """Catches marks that one is taken for the other by."""
    page = tmp_path / "page.md"
    for options in ([], ["--held"], [], ["--held"]):
        monkeypatch.setattr("sys.argv", ["results_table.py", str(page), str(run), *options])
        results_table.main()
    assert page.read_text().count("FrozenLake-v1") == 2
    assert page.read_text().count("1 thread") == 1


def test_the_table_is_replaced_and_the_text_around_it_stays(run, tmp_path, monkeypatch):
    """Catches a second table below the first one."""
    page = tmp_path / "page.md"
    page.write_text("# Results\n")
    monkeypatch.setattr("sys.argv", ["results_table.py", str(page), str(run)])
    for text in ("# Results", "# Other results"):
        results_table.main()
        page.write_text(page.read_text().replace("# Results", text))
    assert page.read_text().startswith("# Other results\n")
    assert page.read_text().count("FrozenLake-v1") == 1


def test_rows_of_other_runs_stay():
    """Catches a table that has lost all runs whose folders are gone."""
    old = [("Lake", "0", "old"), ("Lake", "1", "old"), ("Taxi", "0", "old")]
    new = [("Lake", "1", "new"), ("Lake", "2", "new"), ("Cliff", "0", "new")]
    assert results_table.merged(old, new) == [old[0], *new[:2], old[2], new[2]]
    kind = results_table.LEARNED
    begin, end = kind.marks
    page = f"{begin}\n{results_table.markdown(kind, [kind.header])}\n{end}"
    assert results_table.written(kind, page) == [kind.header]
    assert results_table.written(kind, "a page without a table") == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="give the folder of a run"):
        results_table.row(tmp_path)
