"""The notebooks run from their first cell to their last, on the tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
SMALL = {"ROLLOUTS": 2}


def cells(notebook: Path) -> list[str]:
    """The cells of code, as jupytext reads them, with small numbers for parameters."""
    jupytext = pytest.importorskip("jupytext")
    return [cell.source for cell in jupytext.read(notebook).cells if cell.cell_type == "code"]


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["quickstart", "reading_a_run", "your_own_environment"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_told_apart(notebook):
    """Catches a header or a marker that jupytext does not know: all would be one cell, or text."""
    found = cells(notebook)
    assert len(found) > 3
    assert any(cell.startswith("MODEL = ") for cell in found)
    assert not any("# %%" in cell for cell in found)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook, tmp_path, monkeypatch, model_folder, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mpl, "use", lambda *_: None)  # a notebook's own choice would open windows
    mpl.rcParams["backend"] = "agg"
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells(notebook):
        if cell.startswith("MODEL = "):
            cell = re.sub(r"^MODEL = .*$", f"MODEL = {str(model_folder)!r}", cell, flags=re.MULTILINE)
            for name, value in SMALL.items():
                cell = re.sub(rf"^{name} = \d+", f"{name} = {value}", cell, flags=re.MULTILINE)
        exec(compile(cell, notebook.name, "exec"), names)
    assert names["ROLLOUTS"] == SMALL["ROLLOUTS"]
    assert list(tmp_path.glob("runs/*"))
