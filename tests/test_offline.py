"""From logged play to a policy, and on to live play: on the tiny model, by the command line."""

from __future__ import annotations

import pytest

from helpers.runs import QUICK, assert_same_run, checkpoint, lgym, scalars

CQL = {
    **QUICK,
    "model": "lgym.modules.CQL",
    "data__episodes_per_rollout": None,
    "data__eval_episodes": 32,
}
BUFFER = (
    '{"class_path": "lgym.data.ReplayBuffer", "init_args": {"capacity": 200, "minibatch_size": 64, '
    '"updates_per_rollout": 8, "learning_starts": 1}}'
)


@pytest.fixture(scope="module")
def log(tmp_path_factory, model_folder):
    """Random play."""
    folder = tmp_path_factory.mktemp("log")
    random = {**QUICK, "model__init_args__policy__init_args__temperature": 1e6}
    lgym("predict", folder, model_folder, data__eval_episodes=100, **random)
    (path,) = folder.rglob("transcripts.jsonl")
    return f'["{path}"]'


@pytest.mark.parametrize("algorithm", ["CQL", "IQL"])
def test_it_learns_from_a_log_alone_and_goes_on_with_live_play(tmp_path, model_folder, log, algorithm):
    """Echo pays 1 for the word that was shown, a third of it at random."""
    values = {**CQL, "model": f"lgym.modules.{algorithm}", "data__replay": BUFFER}
    offline = {**values, "data__logged_episodes": log}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=6, **offline)
    curves = scalars(tmp_path)
    best = max(curves["val_greedy/return_mean"].values())
    assert best > 0.9, curves["val_greedy/return_mean"]
    assert set(curves["rollout/total_turns"].values()) == {100.0}, "nothing was played"
    assert len(held(tmp_path)["choices"]) == 100
    live = {**values, "data__turns_per_rollout": 40}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=8, ckpt_path="last", **live)
    assert len(held(tmp_path)["choices"]) == 180
    assert list(scalars(tmp_path)["rollout/total_turns"].values())[-1] == 80.0


def held(root):
    """The columns of the replay buffer in a run's checkpoint."""
    return checkpoint(root)["RolloutDataModule"]["ranks"][0]["replay"]["columns"]


def test_stopped_and_resumed_equals_uninterrupted(tmp_path, model_folder, log):
    options = {**CQL, "data__logged_episodes": log, "data__replay": BUFFER}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lgym("fit", whole, model_folder, trainer__max_epochs=3, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=1, **options)
    lgym("fit", parts, model_folder, trainer__max_epochs=3, ckpt_path="last", **options)
    assert_same_run(whole, parts)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "lgym.modules.PPO"}, "learns from its own play: take lgym.modules.CQL"),
        ({"data__replay": BUFFER.replace("200", "64")}, "has 100 turns and data.replay.capacity is 64"),
    ],
)
def test_what_cannot_learn_from_a_log_is_refused(tmp_path, model_folder, log, capsys, changes, said):
    options = {**CQL, "data__logged_episodes": log, **changes}
    with pytest.raises(SystemExit):
        lgym("fit", tmp_path, model_folder, **options)
    assert said in " ".join(capsys.readouterr().err.split())
