"""The progress bar, as a terminal shows it."""

from __future__ import annotations

import re
import time

import lightning as L
import pytest

from helpers import echo
from helpers.runs import lgym
from helpers.training import fit, tiny_config
from lgym.callbacks import RolloutProgress
from lgym.data import ExpertDemonstrations, ReplayBuffer
from lgym.modules import DQN, PPO, SFTConfig


class Namer:
    """Names the action whose number is shown."""

    def act(self, observation, info):
        return int(observation)


@pytest.mark.parametrize(
    ("module", "settings", "wanted"),
    [
        (PPO, {"minibatch_size": 2, "update_epochs": 2}, 4),  # three prompts, two at a time, twice
        (
            PPO,
            {
                "demonstrations": [ExpertDemonstrations(Namer(), episodes=9)],
                "sft_batch_size": 3,
                "update_epochs": 2,
            },
            6,
        ),
        (
            PPO,
            {
                "demonstrations": [ExpertDemonstrations(Namer(), episodes=9)],
                "sft_batch_size": 3,
                "sft_turns_per_pass": 5,
                "update_epochs": 2,
            },
            4,
        ),
        (DQN, {"replay": ReplayBuffer(minibatch_size=8, updates_per_rollout=5, learning_starts=8)}, 5),
    ],
)
def test_learning_shows_how_many_minibatches_there_are(
    model_folder, tmp_path, capsys, module, settings, wanted
):
    sft = SFTConfig(rollouts=1) if "demonstrations" in settings else SFTConfig()
    fit(
        module(llm=tiny_config(model_folder), sft=sft),
        tmp_path,
        data=settings,
        trainer={"max_epochs": 1, "callbacks": [RolloutProgress()], "enable_progress_bar": True},
    )
    shown = re.findall(r"learning minibatches:[^\r\n]*?\d+/(\d+)", capsys.readouterr().err)
    assert set(shown) == {str(wanted)}


def test_a_resumed_run_begins_with_the_rollouts_that_are_done(model_folder, tmp_path, capsys):
    bar = {"trainer__enable_progress_bar": "true"}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **bar)
    capsys.readouterr()
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=3, ckpt_path="last", **bar)
    shown = re.findall(r"rollouts:[^\r\n]*?(\d+)/3", capsys.readouterr().err)
    assert shown[0] == "2"
    assert shown[-1] == "3"


class SlowEnvironments(L.Callback):
    """Takes longer over a step than the bar waits between two drawings."""

    def on_play(self, progress):
        time.sleep(0.31)


def shown_while_counting(model_folder, folder, capsys, *, trainer=None, **data) -> str:
    """What the bars of a rollout say, whose episodes have three turns that pay 1, 2 and 3."""
    fit(
        PPO(llm=tiny_config(model_folder)),
        folder,
        data={"env": "Counting-v0", "agent": echo.CountingAgent(), "max_episode_steps": 3, **data},
        trainer={
            "max_epochs": 1,
            "callbacks": [SlowEnvironments(), RolloutProgress()],
            "enable_progress_bar": True,
            **(trainer or {}),
        },
    )
    return capsys.readouterr().err


def test_playing_shows_steps_while_no_episode_ends(model_folder, tmp_path, capsys):
    """An episode may last minutes: a bar that stands at none looks like a hang."""
    err = shown_while_counting(model_folder, tmp_path, capsys, num_envs=4, episodes_per_rollout=8)
    shown = re.findall(r"playing episodes:[^\r\n]*? (\d)/8 [^\r\n]*?steps=(\d+)", err)
    assert {("0", "2"), ("4", "3"), ("4", "4"), ("4", "5")} <= set(shown)


def test_an_evaluation_shows_its_mode_and_the_return_so_far(model_folder, tmp_path, capsys):
    """It may last minutes, and its table comes after both modes."""
    evaluated = {"limit_val_batches": 1}
    err = shown_while_counting(model_folder, tmp_path, capsys, trainer=evaluated, eval_episodes=4)
    for mode in ("greedy", "sampled"):
        assert re.search(rf"evaluating episodes, {mode}:[^\r\n]*?steps=2\]", err)
        assert re.search(rf"evaluating episodes, {mode}:[^\r\n]*?steps=3, return=6\.000", err)
