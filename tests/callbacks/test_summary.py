"""What a run says at its end."""

from __future__ import annotations

from helpers.runs import lgym


def test_a_run_that_stops_between_evaluations_says_so(tmp_path, model_folder, capsys):
    """`trainer.max_steps` ends a run where nobody can foresee it."""
    lgym(
        "fit",
        tmp_path,
        model_folder,
        trainer__max_steps=13,
        trainer__max_epochs=9,
        trainer__check_val_every_n_epoch=2,
    )
    assert "the last one was after 2 rollouts" in capsys.readouterr().out


def test_validate_prints_the_result_once(tmp_path, model_folder, capsys):
    """Lightning's own table would repeat it with every column twice."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    capsys.readouterr()
    lgym("validate", tmp_path, model_folder, ckpt_path="last")
    out = capsys.readouterr().out
    assert out.count("this policy, greedy") == 1
    assert "DataLoader" not in out
