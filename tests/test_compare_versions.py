"""Two versions of lgym, timed in turns."""

from __future__ import annotations

import pytest

import compare_versions


def test_a_row_is_of_medians_and_their_ratio():
    """Catches a ratio the wrong way round, and a sum of medians for the median of sums: 1 + 8, 2 + 3 and 6 + 1
    have a median of 7, and not 2 + 3."""
    before = [
        {"playing": 1.0, "updating": 8.0},
        {"playing": 2.0, "updating": 3.0},
        {"playing": 6.0, "updating": 1.0},
    ]
    table = compare_versions.table({"old": before, "now": [{"playing": 1.0, "updating": 1.0}]})
    assert table.splitlines()[2:] == [
        "| playing | 2.0 (1.0 to 6.0) | 1.0 (1.0 to 1.0) | 2.00 |",
        "| updating | 3.0 (1.0 to 8.0) | 1.0 (1.0 to 1.0) | 3.00 |",
        "| both | 7.0 (5.0 to 9.0) | 2.0 (2.0 to 2.0) | 3.50 |",
    ]


@pytest.mark.slow
def test_both_versions_are_run(model_folder, capsys):
    """Catches a version that is not run from its own folder, and words that do not reach `lgym fit`."""
    words = [
        "--data.env",
        "FrozenLake-v1",
        "--data.num_envs",
        "2",
        "--data.turns_per_rollout",
        "8",
        "--data.eval_episodes",
        "1",
    ]
    compare_versions.main(
        ["HEAD", "--repeat", "1", *words, "--model.llm.model", str(model_folder), "--trainer.max_epochs", "2"]
    )
    assert "| playing |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="one rollout"):
        compare_versions.main(
            [
                "HEAD",
                "--repeat",
                "1",
                *words,
                "--model.llm.model",
                str(model_folder),
                "--trainer.max_epochs",
                "1",
            ]
        )
