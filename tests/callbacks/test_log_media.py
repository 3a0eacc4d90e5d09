"""Other loggers than TensorBoard's: numbers, transcripts and pictures, or a word on what is missing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from helpers.runs import lgym

BLACKJACK = {
    "data__env": "Blackjack-v1",
    "data__agent": "lgym.agents.BlackjackAgent",
    "trainer__callbacks": "lgym.callbacks.BlackjackStrategy",
    "trainer__max_epochs": 1,
}


def fit(tmp_path: Path, model_folder: Path, logger: str, **arguments) -> None:
    settings = {f"trainer__logger__init_args__{name}": value for name, value in arguments.items()}
    lgym("fit", tmp_path / "run", model_folder, **{"trainer__logger": logger}, **settings, **BLACKJACK)


def test_csv_has_the_numbers_and_what_it_lacks_is_said(tmp_path, model_folder, capsys):
    """All but the numbers is in the run's folder, where `--ckpt_path last` looks."""
    fit(tmp_path, model_folder, "lightning.pytorch.loggers.CSVLogger", save_dir=tmp_path / "csv")
    said = capsys.readouterr().out
    assert "CSVLogger keeps numbers alone: transcripts are in episodes.jsonl" in said
    with (tmp_path / "csv" / "lightning_logs" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(row["rollout/return_mean"] for row in rows)
    assert any(row["val_sampled/return_mean"] for row in rows)
    run = tmp_path / "run" / "version_0"
    assert json.loads((run / "episodes.jsonl").read_text().splitlines()[0])["turns"]
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "config.yaml", "run.json", "adapter"):
        assert (run / name).exists(), name
    assert [path.name for path in (tmp_path / "csv").rglob("*.*")] == ["metrics.csv"]


def test_wandb_has_all(tmp_path, model_folder, monkeypatch, capsys):
    """Offline: its file holds a table of texts and a picture."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    fit(
        tmp_path,
        model_folder,
        "lightning.pytorch.loggers.WandbLogger",
        save_dir=tmp_path / "wandb",
        offline="true",
    )
    wandb.finish()
    assert "keeps numbers alone" not in capsys.readouterr().out
    media = [path.relative_to(tmp_path).as_posix() for path in (tmp_path / "wandb").rglob("media/**/*.*")]
    assert any("images/strategy" in path for path in media)
    assert any("table/transcripts" in path for path in media)


def test_mlflow_has_all(tmp_path, model_folder, capsys):
    """In a folder of files."""
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    fit(
        tmp_path,
        model_folder,
        "lightning.pytorch.loggers.MLFlowLogger",
        tracking_uri=uri,
        artifact_location=tmp_path / "artifacts",
    )
    assert "keeps numbers alone" not in capsys.readouterr().out
    client = mlflow.tracking.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("lightning_logs").experiment_id])
    assert "rollout/return_mean" in run.data.metrics
    assert [file.path for file in client.list_artifacts(run.info.run_id, "strategy")]
    (text, *_) = client.list_artifacts(run.info.run_id, "transcripts")
    assert text.path.endswith(".md")
