"""A guard that climbs its ladder on the tiny model, goes back exactly, and leaves a sound run alone."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.rollouts import candidate_learner as learner
from helpers.runs import QUICK, assert_same, assert_same_run, checkpoint, lgym, scalars
from helpers.spoiler import Spoiler
from lgym.callbacks import CollapseGuard
from lgym.modules import PPO
from test_resume import SCHEDULE, TALK, THINKS, WARM

RATE = "model__init_args__optimizer__init_args__lr"
RUN = {**QUICK, "data__update_epochs": 2, "trainer__check_val_every_n_epoch": 1}
EVERY_ROLLOUT = {"max_kl": 0.0}
"""With it each rollout shows a sign."""


@pytest.fixture(autouse=True)
def _nothing_seen():
    Spoiler.seen.clear()


def guarded(root, model, rollouts, spoil=(), guard=None, spoiler=None, **options):
    """A run with a guard that acts; its rollouts of the numbers `spoil` look as if one action were played
    everywhere."""
    callbacks = [
        {"class_path": "lgym.callbacks.CollapseGuard", "init_args": guard or {}},
        {"class_path": "helpers.spoiler.Spoiler", "init_args": {"rollouts": list(spoil), **(spoiler or {})}},
    ]
    lgym(
        "fit",
        root,
        model,
        **{"trainer__max_epochs": rollouts, "trainer__callbacks": json.dumps(callbacks), **RUN, **options},
    )


def state(root):
    return checkpoint(root)["callbacks"]["CollapseGuard"]


def logged(root, name):
    return list(scalars(root)[name].values())


def broken_loss(monkeypatch, rollouts, how):
    """PPO's loss is of no use in the second minibatch of these rollouts, counted from 1; tells of what it was
    asked for."""
    sound, asked = PPO.loss, []

    def broken(self, batch):
        loss, metrics = sound(self, batch)
        asked.append(
            (self.trainer.current_epoch + 1, self.trainer.fit_loop.epoch_loop.batch_progress.current.ready)
        )
        if asked[-1] in [(rollout, 2) for rollout in rollouts]:
            p = next(p for p in self.parameters() if p.requires_grad)
            loss = (
                loss * torch.nan if how == "loss" else loss + (p * 0).sqrt().sum()
            )  # finite, but of infinite slope
        return loss, metrics

    monkeypatch.setattr(PPO, "loss", broken)
    return asked


# -- the ladder ----------------------------------------------------------------------------------------------


def test_it_warns_then_lowers_then_goes_back_then_stops(tmp_path, model_folder, capsys):
    """In this order, with the rate halved at each step but the first and last; then exit status 1 and the
    report."""
    with pytest.raises(SystemExit) as stop:
        guarded(tmp_path, model_folder, 9, guard={**EVERY_ROLLOUT, "max_rollbacks": 2})
    assert stop.value.code == 1
    assert logged(tmp_path, "guard/level") == [1, 2, 3, 3, 4]
    assert logged(tmp_path, "guard/lr_factor") == [1, 0.5, 0.25, 0.125, 0.125]
    assert logged(tmp_path, "guard/rollbacks") == [0, 0, 1, 2, 2]
    rates = [0.005 * factor for factor in (1, 1, 0.5, 0.25, 0.125)]
    assert logged(tmp_path, "optim/lr") == pytest.approx(rates, rel=1e-6)
    folder = tmp_path / "version_0"
    told = (folder / "collapse_report.md").read_text(encoding="utf-8")
    actions = ["warns", "lowers the learning rates to 0.5", "goes back", "goes back", "and ends the run"]
    places = [told.index(f"| {rollout} | ") for rollout in range(1, 6)]
    for action, start, end in zip(actions, places, [*places[1:], len(told)], strict=True):
        assert action in told[start:end]
        assert "policy/old_kl is" in told[start:end]
    assert "after rollout 5" in told.splitlines()[0]
    out = capsys.readouterr().out
    assert str(folder / "collapse_report.md") in out
    assert "went back to other weights after the last evaluation" in out
    assert (folder / "adapter").is_dir(), "what is left is of use"


def test_each_action_is_an_event_in_tensorboard(tmp_path, model_folder):
    """As text, with its reasons; a rollout without an action has none."""
    guarded(tmp_path, model_folder, 5, spoil=[2, 4])
    events = EventAccumulator(str(tmp_path / "version_0"))
    events.Reload()
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("guard/text_summary")]
    assert len(texts) == 2
    assert "| 2 | warns | rollout/dominant_action is 1, above 0.95 |" in texts[0]
    assert (
        "| 4 | lowers the learning rates to 0.5 of what is configured | rollout/dominant_action" in texts[1]
    )
    assert logged(tmp_path, "guard/level") == [0, 1, 1, 2, 2]


def test_rollouts_without_a_sign_bring_it_down_again(tmp_path, model_folder):
    """But the learning rate stays low, and three in a row are needed."""
    guarded(tmp_path, model_folder, 9, spoil=[2, 4, 8], guard={"recovery": 3})
    assert logged(tmp_path, "guard/level") == [0, 1, 1, 2, 2, 2, 0, 1, 1]
    assert logged(tmp_path, "guard/lr_factor") == [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]


# -- going back ----------------------------------------------------------------------------------------------


def test_it_goes_back_to_the_best_validated_weights_exactly(tmp_path, model_folder):
    """Weights, optimizer and random states, as they were after rollout 1. Those after 2 were validated too,
    but rollout 3, which they played, shows a sign: always-stay is better than an untrained policy, and must
    not become the best."""
    guarded(tmp_path, model_folder, 6, spoil=[3, 4, 5])
    seen, kept = Spoiler.seen, state(tmp_path)
    assert_same(seen[0], seen[4])
    assert kept["best"]["number"] == 1
    assert kept["undone"] == 5 - 1
    for other in (3, 5):  # before and after, it goes on learning, and drawing
        assert all(
            not torch.equal(tensor, seen[other]["weights"][name])
            for name, tensor in seen[0]["weights"].items()
            if not name.endswith((".mean", ".std"))  # of returns, which may be those of another rollout
        )
        assert seen[other]["optimizer"][0]["step"] > seen[0]["optimizer"][0]["step"]
        assert not torch.equal(seen[other]["rng"]["torch"], seen[0]["rng"]["torch"])
    assert_same(kept["best"]["weights"], seen[0]["weights"])  # not learned into
    assert_same(kept["best"]["optimizers"], [seen[0]["optimizer"]])


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_is_the_best_by_the_monitor(tmp_path, model_folder, mode):
    """Of the evaluations after rollouts 1 to 4; that after 5 has not played yet."""
    guarded(tmp_path, model_folder, 5, guard={"mode": mode, "monitor": "val_sampled/return_mean"})
    scores = logged(tmp_path, "val_sampled/return_mean")[1:5]  # not that before the first step
    wanted = max(scores) if mode == "max" else min(scores)
    best = state(tmp_path)["best"]
    assert best["score"] == pytest.approx(wanted)
    assert best["number"] == scores.index(wanted) + 1
    assert state(tmp_path)["pending"]["number"] == 5


def test_without_an_evaluation_it_goes_back_to_the_start(tmp_path, model_folder):
    """The untrained adapters and an optimizer that has taken no step. PPO's value warm-up then comes once
    more, as in rollout 1: the policy must not learn from a value head that is not warm yet."""
    guarded(tmp_path, model_folder, 5, spoil=[2, 3, 4], trainer__limit_val_batches=0)
    assert all(not tensor.any() for name, tensor in Spoiler.seen[3]["weights"].items() if "lora_B" in name)
    assert Spoiler.seen[3]["optimizer"] == {}
    assert state(tmp_path)["undone"] == 4
    total, value, kl = (logged(tmp_path, name) for name in ("loss/total", "loss/value", "policy/old_kl"))
    warming_up = [t == pytest.approx(0.5 * v + d, abs=1e-5) for t, v, d in zip(total, value, kl, strict=True)]
    assert warming_up == [True, False, False, False, True]


def test_imitation_comes_before_the_start(tmp_path, model_folder):
    """Catches a rollback to before demonstrations that are not shown again."""
    config = tmp_path / "talk.yaml"
    config.write_text(TALK.format(policy=THINKS, sft="{rollouts: 2}", data=WARM))
    lgym(
        "fit", tmp_path, model_folder, config, trainer__max_epochs=3, data__eval_episodes=4,
        trainer__callbacks='[{"class_path": "lgym.callbacks.CollapseGuard"}, {"class_path": "helpers.spoiler.Spoiler"}]',
    )  # fmt: skip
    best = state(tmp_path)["best"]
    assert best["number"] == best["rollouts"] == 2
    assert_same(best["weights"], Spoiler.seen[1]["weights"])


# -- resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "schedule"),
    [pytest.param(2, {}, marks=pytest.mark.slow), (3, SCHEDULE), (4, {})],
    ids=["warned", "lowered", "went-back"],
)
def test_a_guarded_run_resumes_exactly(tmp_path, model_folder, schedule, stop):
    """After the warning, after the rate was lowered and after going back: the run that was not stopped, bit
    for bit. All of it loads as plain tensors and numbers."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    bad = {"spoil": [2, 3, 4, 6], **schedule}
    guarded(whole, model_folder, 6, **bad)
    guarded(parts, model_folder, stop, **bad)
    guarded(parts, model_folder, 6, **bad, ckpt_path="last")
    assert_same_run(whole, parts)
    assert_same(state(whole), state(parts))
    assert state(parts)["rollbacks"] == 2


@pytest.mark.parametrize(
    ("stop", "every", "spoil"),
    [(3, 2, [2, 3, 5]), (2, 4, [4, 5, 6]), pytest.param(1, 10, [], marks=pytest.mark.slow)],
    ids=["between", "before", "never"],
)
def test_an_evaluation_at_a_stop_is_not_remembered(tmp_path, model_folder, stop, every, spoil):
    """A run that is stopped is evaluated there, out of turn; the uninterrupted run is not, and knows nothing
    of weights that were good then. Catches a guard that would go back to them after it is resumed."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    bad = {"spoil": spoil, "trainer__check_val_every_n_epoch": every}
    guarded(whole, model_folder, 7, **bad)
    guarded(parts, model_folder, stop, **bad)
    guarded(parts, model_folder, 7, **bad, ckpt_path="last")
    assert_same(state(whole), state(parts))
    assert_same_run(whole, parts, validated_alike=False)


def test_a_rollout_that_taught_nothing_is_not_judged_by_the_one_before(tmp_path, model_folder, monkeypatch):
    """Rollout 2 has no loss, and so no divergence. The trainer tells of rollout 1's again, unless the run was
    stopped in
    between: the uninterrupted run's guard saw a second sign, and lowered the learning rate."""
    sound = PPO.loss
    monkeypatch.setattr(
        PPO, "loss", lambda self, batch: (None, {}) if self.trainer.current_epoch == 1 else sound(self, batch)
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    guarded(whole, model_folder, 2, guard=EVERY_ROLLOUT)
    guarded(parts, model_folder, 1, guard=EVERY_ROLLOUT)
    guarded(parts, model_folder, 2, guard=EVERY_ROLLOUT, ckpt_path="last")
    assert logged(whole, "guard/level") == [1, 1]
    assert_same(state(whole), state(parts))


def test_a_lowered_rate_stays_low_until_another_is_given(tmp_path, model_folder):
    """Resuming applies the configured rate: with the factor if it is the old one, and as it stands if it is
    new."""
    settings = {"guard": EVERY_ROLLOUT, "trainer__limit_val_batches": 0}
    guarded(tmp_path, model_folder, 2, **settings)
    kept = tmp_path / "version_0" / "checkpoints" / "kept.ckpt"
    shutil.copy(kept.with_name("last.ckpt"), kept)
    guarded(tmp_path, model_folder, 3, ckpt_path=str(kept), **settings)
    assert logged(tmp_path, "optim/lr")[2] == pytest.approx(0.0025, rel=1e-6)
    guarded(tmp_path, model_folder, 3, ckpt_path=str(kept), **settings, **{RATE: 0.002})
    assert logged(tmp_path, "optim/lr")[2] == pytest.approx(0.002, rel=1e-6)


def test_a_run_that_was_ended_can_go_on(tmp_path, model_folder):
    """With all its chances, from the weights that it was left with."""
    with pytest.raises(SystemExit):
        guarded(tmp_path, model_folder, 5, guard={**EVERY_ROLLOUT, "max_rollbacks": 0})
    guarded(tmp_path, model_folder, 4, ckpt_path="last")
    assert logged(tmp_path, "guard/level") == [1, 2, 4, 0]
    assert logged(tmp_path, "guard/lr_factor") == [1, 0.5, 0.5, 0.5]


# -- what is not finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_no_number_is_survived(tmp_path, model_folder, monkeypatch, how):
    """The rest of that rollout is left out, and the run goes on from the best weights at half the rate."""
    asked = broken_loss(monkeypatch, [3], how)
    alone = {"min_action_information": 0}  # the tiny model knows least in its first rollouts
    guarded(tmp_path, model_folder, 5, guard=alone, data__minibatch_size=1)
    assert [minibatch for rollout, minibatch in asked if rollout == 3] == [1, 2]
    assert logged(tmp_path, "guard/level") == [0, 0, 3, 3, 3]
    assert logged(tmp_path, "optim/lr")[:4] == pytest.approx([0.005, 0.005, 0.005, 0.0025], rel=1e-6)
    kept = state(tmp_path)
    event = kept["events"][0]
    assert event["rollout"] == 3
    assert event["signs"][0].startswith(f"The {how}" if how == "loss" else "The gradient's norm")
    scores = logged(tmp_path, "val_sampled/return_mean")[1:3]
    best = scores.index(
        max(scores)
    )  # those after rollout 2 have played rollout 3, which was sound until it broke
    for part in ("weights", "optimizer"):  # of chance, the rest of the rollout has drawn since
        assert_same(Spoiler.seen[best][part], Spoiler.seen[2][part])
    assert all(bool(one["finite"]) for one in Spoiler.seen)
    assert any(
        not torch.equal(Spoiler.seen[4]["weights"][n], t) for n, t in Spoiler.seen[2]["weights"].items()
    )


def test_no_step_is_taken_with_a_gradient_that_is_no_number():
    """Before anybody has gone back, the weights are what they were."""
    module, told = learner(), []
    module.on_nonfinite = told.append
    trained = [p for p in module.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.full_like(p, torch.nan)
    module.on_before_optimizer_step(torch.optim.AdamW(trained))
    assert all(p.grad is None for p in trained)
    assert "no step was taken" in told[0]


def test_a_last_rollout_that_breaks_is_evaluated_after_going_back(
    tmp_path, model_folder, monkeypatch, capsys
):
    """So the run's table is that of its weights, and nothing is said of others."""
    broken_loss(monkeypatch, [3], "loss")
    guarded(tmp_path, model_folder, 3)
    assert "after the last evaluation" not in capsys.readouterr().out


@pytest.mark.parametrize("accumulate", [1, 3])
def test_nothing_of_a_broken_rollout_is_left(tmp_path, model_folder, monkeypatch, accumulate):
    """Catches gradients that were gathered before, and are stepped with afterwards."""
    broken_loss(monkeypatch, [3], "loss")
    guarded(
        tmp_path, model_folder, 3, trainer__accumulate_grad_batches=accumulate, trainer__limit_val_batches=0,
        data__minibatch_size=1,
    )  # fmt: skip
    saved = checkpoint(tmp_path)
    assert all(not tensor.any() for name, tensor in saved["state_dict"].items() if "lora_B" in name)
    assert saved["optimizer_states"][0]["state"] == {}


def test_weights_that_are_no_numbers_never_play(tmp_path, model_folder):
    """After the last step of a rollout nothing else would notice before the next one is played."""
    spoiled = {"class_path": "callbacks.test_collapse_guard.LastStep"}
    lgym(
        "fit", tmp_path, model_folder, **RUN, trainer__max_epochs=3,
        trainer__callbacks=json.dumps([spoiled, {"class_path": "lgym.callbacks.CollapseGuard"}]),
    )  # fmt: skip
    assert logged(tmp_path, "guard/level") == [0, 3, 3]
    assert "A weight is not finite" in state(tmp_path)["events"][0]["signs"][0]


class LastStep(Spoiler):
    """Makes a weight infinite with the last step of rollout 2."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == 1 and trainer.is_last_batch:
            with torch.no_grad():
                next(p for p in pl_module.parameters() if p.requires_grad).fill_(torch.inf)


def test_when_it_keeps_breaking_the_run_ends(tmp_path, model_folder, monkeypatch, capsys):
    """With the report and sound weights."""
    broken_loss(monkeypatch, [2, 3, 4, 5, 6], "loss")
    with pytest.raises(SystemExit) as stop:
        guarded(tmp_path, model_folder, 9, guard={"max_rollbacks": 1})
    assert stop.value.code == 1
    assert logged(tmp_path, "guard/level") == [0, 3, 4]
    assert "The loss is nan in rollout 3" in (tmp_path / "version_0" / "collapse_report.md").read_text(
        encoding="utf-8"
    )
    assert all(tensor.isfinite().all() for tensor in checkpoint(tmp_path)["state_dict"].values())


def test_switched_off_it_ends_the_run_at_once(tmp_path, model_folder, monkeypatch, capsys):
    """As without a guard."""
    broken_loss(monkeypatch, [2], "loss")
    with pytest.raises(SystemExit):
        guarded(tmp_path, model_folder, 3, guard={"non_finite": False})
    assert "The loss is nan in rollout 2" in capsys.readouterr().err
    assert logged(tmp_path, "guard/level") == [0]


# -- leaving alone -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_learns_is_left_alone(tmp_path, model_folder):
    """With the default limits, to the last bit; and it does learn."""
    learn = {
        "data__episodes_per_rollout": 96,
        "data__num_envs": 32,
        "data__update_epochs": 8,
        "data__eval_episodes": 50,
    }
    guarded(tmp_path / "guarded", model_folder, 7, **learn)
    alone = {"trainer__max_epochs": 7, "trainer__callbacks": '[{"class_path": "helpers.spoiler.Spoiler"}]'}
    lgym("fit", tmp_path / "plain", model_folder, **{**RUN, **learn, **alone})
    with_guard, without = checkpoint(tmp_path / "guarded"), checkpoint(tmp_path / "plain")
    for part in ("state_dict", "optimizer_states", "RolloutDataModule", "lgym"):
        assert_same(with_guard[part], without[part])
    assert set(logged(tmp_path / "guarded", "guard/level")) == {0}
    assert logged(tmp_path / "guarded", "rollout/return_mean")[-1] > 0.8


def test_by_default_it_only_warns(tmp_path, model_folder, capsys):
    """Every run has one that says what it sees, once, and does nothing; it keeps no weights."""
    spoiler = {"class_path": "helpers.spoiler.Spoiler", "init_args": {"rollouts": [2, 3, 4, 5]}}
    lgym(
        "fit", tmp_path, model_folder, **RUN, trainer__max_epochs=5, trainer__callbacks=json.dumps([spoiler])
    )
    assert capsys.readouterr().out.count("Collapse guard after rollout") == 1
    assert logged(tmp_path, "guard/level") == [0, 1, 1, 1, 1]
    assert "guard/lr_factor" not in scalars(tmp_path)
    assert state(tmp_path)["best"] is None
    assert len(set(logged(tmp_path, "optim/lr"))) == 1


def test_the_disk_must_hold_what_it_keeps(tmp_path, model_folder, monkeypatch, capsys):
    """Two more of what a checkpoint takes."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage(10, 10, 3_500_000)
    )  # a checkpoint is about 1.3 MB, the last and the best
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1)
    with pytest.raises(SystemExit):
        guarded(tmp_path, model_folder, 1)
    assert "needs about" in capsys.readouterr().err


# -- settings ------------------------------------------------------------------------------------------------


def test_a_monitor_that_nobody_logs(tmp_path, model_folder, capsys):
    """Its names are told; going back to the start for ever would help nobody."""
    with pytest.raises(SystemExit):
        guarded(tmp_path, model_folder, 1, guard={"monitor": "val/return"})
    said = capsys.readouterr().err
    assert "'val/return'" in said
    assert "val_sampled/return_mean" in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"lr_factor": 1.0}, "lr_factor is 1.0"),
        ({"max_rollbacks": -1}, "max_rollbacks is -1"),
        ({"recovery": 0}, "recovery is 0"),
        ({"mode": "best"}, "mode is 'best'"),
    ],
)
def test_settings_out_of_range(setting, said):
    """A factor of 1 would lower nothing, for ever."""
    with pytest.raises(ValueError, match=said):
        CollapseGuard(**setting)
