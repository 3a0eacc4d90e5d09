"""The trainer of the command line: the policy that a run ends with is evaluated."""

from __future__ import annotations

from helpers.runs import assert_same_run, lgym, scalars


def test_the_last_rollout_is_evaluated_whatever_the_interval(tmp_path, model_folder, capsys):
    """A table of an older policy, or none at all, would not be the run's result."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, trainer__check_val_every_n_epoch=2)
    assert len(scalars(tmp_path)["val_sampled/return_mean"]) == 3  # at the start, after rollouts 2 and 3
    assert "this policy, sampled" in capsys.readouterr().out


def test_an_evaluation_of_the_last_policy_is_not_repeated(tmp_path, model_folder):
    """At the start, after rollout 2, and none at the end of the run, which is the same."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, trainer__check_val_every_n_epoch=2)
    assert len(scalars(tmp_path)["val_sampled/return_mean"]) == 2


def test_the_evaluation_before_the_first_step(tmp_path, model_folder, capsys):
    """At step 0 and in the summary, also of a run that goes on, which has none of its own."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, trainer__check_val_every_n_epoch=9)
    curve = scalars(tmp_path)["val_sampled/return_mean"]
    start = f"{curve[0]:+.4f} ± "
    out = capsys.readouterr().out
    assert f"sampled {start}" in out
    assert f"this policy, sampled  {start}" in out
    assert out.count(" → ") == 2
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, ckpt_path="last")
    resumed = capsys.readouterr().out
    assert "before its first step" not in resumed
    assert f"this policy, sampled  {start}" in resumed
    assert list(scalars(tmp_path)["val_sampled/return_mean"]) == sorted(
        scalars(tmp_path)["val_sampled/return_mean"]
    )


def test_an_evaluation_that_may_stop_is_announced_so(tmp_path, model_folder, capsys):
    """Its number of episodes is not known before."""
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, data__eval_episodes=60, data__eval_ci=9)
    assert "before its first step: at most 60 episodes" in capsys.readouterr().out
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, data__eval_episodes=60)
    assert "before its first step: 60 episodes" in capsys.readouterr().out


def test_the_evaluation_before_the_first_step_changes_nothing(tmp_path, model_folder, capsys):
    """Weights and random states are those of a run without it."""
    with_it, without = tmp_path / "with", tmp_path / "without"
    lgym("fit", with_it, model_folder, trainer__max_epochs=2)
    capsys.readouterr()
    lgym("fit", without, model_folder, trainer__max_epochs=2, trainer__num_sanity_val_steps=0)
    assert "before its first step" not in capsys.readouterr().out
    assert 0 not in scalars(without)["val_sampled/return_mean"]
    assert_same_run(with_it, without, validated_alike=False)
