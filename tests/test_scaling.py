"""The scaling pictures on the tiny model: small numbers, every file written, every curve there."""

from __future__ import annotations

import json

import pytest

import scaling


@pytest.mark.slow
def test_writes_every_picture(tmp_path, model_folder):
    """A number left out, or a time of zero, would draw a wrong slope."""
    scaling.main(
        [
            str(tmp_path),
            "--model",
            str(model_folder),
            "--precision",
            "float32",
            "--tries",
            "1",
            "--largest",
            "300",
        ]
    )
    figures = json.loads((tmp_path / "scaling.json").read_text())
    assert set(figures) == {"candidates", "history", "environments", "rollout"}
    assert list(figures["candidates"]["one token each"]) == ["2", "4", "8", "16", "32", "42", "64"]
    assert all(
        seconds > 0 for curves in figures.values() for curve in curves.values() for seconds in curve.values()
    )
    for name in figures:
        assert (tmp_path / f"scaling-{name}.png").stat().st_size > 1000
