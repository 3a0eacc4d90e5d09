"""What a run says at its end."""

from __future__ import annotations

from helpers.runs import lgym, scalars


def test_a_run_that_stops_between_evaluations_is_evaluated(tmp_path, model_folder):
    """`trainer.max_steps` ends a run where nobody can foresee it: at the start, after 2 rollouts, at the end."""
    lgym(
        "fit",
        tmp_path,
        model_folder,
        trainer__max_steps=13,
        trainer__max_epochs=9,
        trainer__check_val_every_n_epoch=2,
    )
    assert len(scalars(tmp_path)["val_sampled/return_mean"]) == 3


def test_validate_prints_the_result_once(tmp_path, model_folder, capsys):
    """Lightning's own table would repeat it with every column twice."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    capsys.readouterr()
    lgym("validate", tmp_path, model_folder, ckpt_path="last")
    out = capsys.readouterr().out
    assert out.count("this policy, greedy") == 1
    assert "DataLoader" not in out
