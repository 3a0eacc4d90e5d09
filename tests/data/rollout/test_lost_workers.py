"""Environments in workers play the same, and what is lost with one of them is accounted for."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial

import numpy as np
import pytest
import torch

from helpers import echo
from helpers.collectors import choices_of, make_collector, plain_values
from helpers.runs import checkpoint, lgym, scalars
from helpers.scripted import CandidateScorer, TextSpeaker
from helpers.worlds import RandomCountingAgent, RoomsAgent
from lgym.data.rollout.collector import Collector
from lgym.data.rollout.recorder import EpisodeCounts
from lgym.envs import make_env
from lgym.envs.workers import BrokenEnvironmentError, worker_envs

pytestmark = pytest.mark.filterwarnings("ignore:.*is dropped and begun anew:UserWarning")

SCORER, SPEAKER = CandidateScorer(), TextSpeaker(["look", "go east", "go on", "stop", "hm"])


def collector(
    env_id, agent, *, workers, policy=SCORER, num_envs=2, limit=4, timeout=20.0, group_size=1, **kwargs
):
    make = partial(make_env, env_id, kwargs, limit)
    envs = worker_envs(make, num_envs, timeout) if workers else [make() for _ in range(num_envs)]
    prompts = {"scores_candidates": policy.scores_candidates}
    return make_collector(envs, agent, prompts=prompts, kept_transcripts=3, group_size=group_size)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    assert multiprocessing.active_children() == []


def by_episode(rollout):
    """Each episode's turns: the observation, the choice, its reward and how it ended."""
    episodes, choices = {}, choices_of(rollout)
    for stream, step in rollout.mask.nonzero().tolist():
        turn = (
            rollout.prompts[int(rollout.prompt_index[stream, step])].observation_text,
            int(choices[stream, step]),
            float(rollout.rewards[stream, step]),
            bool(rollout.terminated[stream, step]),
            bool(rollout.truncated[stream, step]),
            float(rollout.next_values[stream, step]),
        )
        episode = int(rollout.episode_ids[stream, step]), int(rollout.reset_seeds[stream, step])
        episodes.setdefault(episode, []).append(turn)
    return episodes


@pytest.mark.parametrize("policy", [SCORER, SPEAKER], ids=["candidates", "text"])
@pytest.mark.parametrize(
    ("env_id", "agent", "kwargs"),
    [
        ("Echo-v0", echo.EchoAgent(), {"turns": 3}),
        ("Counting-v0", RandomCountingAgent(), {}),
        ("Rooms-v0", RoomsAgent(), {"text": False}),
        ("Rooms-v0", RoomsAgent(), {"text": True}),
    ],
    ids=["discrete", "box", "dict", "words"],
)
def test_workers_play_what_this_process_plays(env_id, agent, kwargs, policy):
    """Bit for bit, fallbacks and transcripts too; also going on in mid-episode in a second rollout."""
    if env_id == "Rooms-v0" and policy.generates_text:
        agent = type("Agent", (RoomsAgent,), {"fallback": "repeat"})()
    outcomes = []
    for workers in (False, True):
        player = collector(env_id, agent, workers=workers, policy=policy, **kwargs)
        rng = np.random.default_rng(3)
        outcome = [plain_values(player.play(policy, rng, turns=10)), player.transcripts]
        outcome += [
            plain_values(player.play(policy, rng, episodes=5)),
            player.transcripts,
            player.state_dict(),
        ]
        player.close()
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]["prompts"]) > 1


def kills(at):
    """Ends a worker after so many steps of the environments."""
    steps = iter(range(1000))

    def progress(so_far):
        if next(steps) == at:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    return progress


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_an_episode_whose_worker_is_killed_is_played_anew(at):
    """The rollout has the very episodes that it would have had, groups whole, and nothing of the one that was
    lost."""
    sound = collector("Counting-v0", echo.CountingAgent(), workers=False, group_size=3)
    expected = by_episode(sound.play(SCORER, None, episodes=6))
    player = collector("Counting-v0", echo.CountingAgent(), workers=True, group_size=3)
    rollout = player.play(SCORER, None, episodes=6, progress=kills(at))
    player.close()
    assert by_episode(rollout) == expected
    assert int(rollout.mask.sum()) == 24  # 6 episodes of 4 turns
    assert rollout.episode_returns.tolist() == [10.0] * 6  # 1 + 2 + 3 + 4
    assert rollout.episodes_dropped == 1
    assert player.counts == EpisodeCounts(played=7, finished=6, dropped=1, turns=24)
    assert (rollout.total_turns, rollout.total_episodes) == (24, 6)
    assert len(player.transcripts) == 3
    assert all(len(episode.turns) == 4 for episode in player.transcripts)
    assert rollout.terminated[~rollout.mask].all(), "nothing is carried over idle turns"


def test_a_rollout_of_turns_has_as_many_after_a_loss():
    """Three turns of one episode are lost in the third step; those of the one before, in the last rollout,
    stay learned."""
    player = collector("Counting-v0", echo.CountingAgent(), workers=True)
    player.play(SCORER, None, turns=4)  # two turns of four in each
    rollout = player.play(SCORER, None, turns=12, progress=kills(0))
    player.close()
    assert int(rollout.mask.sum()) >= 12
    assert rollout.episodes_dropped == 1
    counts = player.counts
    under_way = sum(runner is not None for runner in player.state_dict()["runners"])
    assert counts.dropped == 1
    assert counts.played == counts.finished + counts.dropped + under_way
    for (_, _), turns in by_episode(rollout).items():
        pays = [pay for _, _, pay, *_ in turns]
        assert pays in ([1, 2, 3, 4][: len(pays)], [3, 4][: len(pays)])


def test_a_worker_that_hangs_is_replaced(tmp_path):
    """After its time, and once: the second attempt finds it mended."""
    settings = {"how": "hang", "once": str(tmp_path / "hung")}
    player = collector("Faulty-v0", echo.CountingAgent(), workers=True, timeout=1.5, **settings)
    rollout = player.play(SCORER, None, episodes=4)
    player.close()
    assert rollout.episode_returns.tolist() == [10.0] * 4
    assert player.counts == EpisodeCounts(played=5, finished=4, dropped=1, turns=16)


def test_a_worker_that_dies_while_a_run_is_resumed_is_replaced(tmp_path):
    """The recorded answers are played once more from the first; unless they kill every worker."""
    mended = tmp_path / "mended"
    mended.touch()
    settings = {"workers": True, "how": "die", "once": str(mended)}
    player = collector("Faulty-v0", echo.CountingAgent(), **settings)
    player.play(SCORER, None, turns=6)
    state = player.state_dict()
    player.close()
    mended.unlink()
    resumed = collector("Faulty-v0", echo.CountingAgent(), **settings)
    resumed.load_state_dict(state)
    assert mended.exists(), "no worker has died"
    assert resumed.state_dict() == state
    resumed.close()
    broken = collector("Faulty-v0", echo.CountingAgent(), workers=True, how="die")
    with pytest.raises(BrokenEnvironmentError, match="has now lost 3 workers"):
        broken.load_state_dict(state)
    broken.close()


def test_an_episode_that_kills_every_worker_ends_the_run():
    """For ever would be no better."""
    player = collector("Faulty-v0", echo.CountingAgent(), workers=True, how="die")
    with pytest.raises(BrokenEnvironmentError) as raised:
        player.play(SCORER, None, episodes=4)
    player.close()
    for part in (
        "Faulty-v0",
        "exit code 3",
        "turn 2, action ",
        "reset seed 101",
        "lost 3 workers",
        "data.env_timeout",
    ):
        assert part in str(raised.value)
    # 100 in four turns, 101 three times in two, 102 begun
    assert (player.counts.played, player.counts.finished, player.counts.dropped) == (5, 1, 3)


@pytest.mark.parametrize("workers", [False, True])
def test_an_environments_error_names_where_it_stood(workers):
    """Which environment, seed, turn and action; and what it was."""
    player = collector("Faulty-v0", echo.CountingAgent(), workers=workers, how="raise")
    with pytest.raises(BrokenEnvironmentError) as raised:
        player.play(SCORER, None, episodes=4)
    player.close()
    for part in ("Faulty-v0 raised ValueError: no such door", "turn 2, action ", "reset seed 101"):
        assert part in str(raised.value)
    assert "no such door" in str(raised.value.__cause__)
    player = collector("Faulty-v0", echo.CountingAgent(), workers=workers, how="raise at reset")
    with pytest.raises(
        BrokenEnvironmentError, match="OSError: the port is taken\nThat was at the start of .* seed 101"
    ):
        player.play(SCORER, None, episodes=4)
    player.close()


FAULTY = {"data__env": "Faulty-v0", "data__agent": "helpers.echo.CountingAgent", "data__max_episode_steps": 4}
FEW = {"data__num_envs": 2, "data__episodes_per_rollout": 6, "data__eval_episodes": 2}


def test_the_command_line_reports_it_in_one_message(tmp_path, model_folder, capfd):
    """And leaves no worker."""
    kwargs = {"data__env_kwargs": "{how: raise, faulty_seed: null}"}
    options = {"data__subprocess_envs": "true", "trainer__max_epochs": 1, "trainer__limit_val_batches": 0}
    with pytest.raises(SystemExit):
        lgym("fit", tmp_path, model_folder, **FAULTY, **FEW, **options, **kwargs)
    message = capfd.readouterr().err
    assert "lgym: Faulty-v0 raised ValueError: no such door" in message
    assert "Traceback" not in message


def test_a_run_with_workers_is_the_run_without_and_resumes_exactly(tmp_path, model_folder):
    """Weights, metrics, the environments and the account of episodes."""
    counting = {
        "data__env": "Counting-v0",
        "data__agent": "helpers.echo.CountingAgent",
        "data__max_episode_steps": 5,
    }
    turns = {
        "data__num_envs": 2,
        "data__episodes_per_rollout": None,
        "data__turns_per_rollout": 12,
        "data__eval_episodes": 2,
    }
    without, within = tmp_path / "without", tmp_path / "within"
    lgym("fit", without, model_folder, trainer__max_epochs=2, **counting, **turns)
    lgym(
        "fit", within, model_folder, trainer__max_epochs=1, data__subprocess_envs="true", **counting, **turns
    )
    lgym(
        "fit",
        within,
        model_folder,
        trainer__max_epochs=2,
        data__subprocess_envs="true",
        ckpt_path="last",
        **counting,
        **turns,
    )
    a, b = checkpoint(without), checkpoint(within)
    assert a["RolloutDataModule"]["ranks"][0]["collector"] == b["RolloutDataModule"]["ranks"][0]["collector"]
    assert a["RolloutDataModule"]["ranks"][0]["rng"] == b["RolloutDataModule"]["ranks"][0]["rng"]
    assert all(torch.equal(tensor, b["state_dict"][name]) for name, tensor in a["state_dict"].items())
    counts = b["RolloutDataModule"]["ranks"][0]["collector"]["counts"]
    assert counts == {"played": 6, "finished": 4, "dropped": 0, "turns": 24}  # 12 in each of 2: 5 + 5 + 2


def test_a_run_goes_on_over_a_killed_worker_and_counts_it(tmp_path, model_folder, monkeypatch):
    """Played = finished + dropped, in the checkpoint and in the logs."""
    sound, steps = Collector._step, iter(range(1000))

    def step(self, *args):
        if next(steps) in (3, 9):
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        return sound(self, *args)

    monkeypatch.setattr(Collector, "_step", step)
    counting = {
        "data__env": "Counting-v0",
        "data__agent": "helpers.echo.CountingAgent",
        "data__max_episode_steps": 4,
    }
    options = {"trainer__limit_val_batches": 0, "data__subprocess_envs": "true", **FEW}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **counting, **options)
    counts = checkpoint(tmp_path)["RolloutDataModule"]["ranks"][0]["collector"]["counts"]
    assert counts == {"played": 14, "finished": 12, "dropped": 2, "turns": 48}
    assert sum(scalars(tmp_path)["rollout/episodes_dropped"].values()) == 2
    assert sum(scalars(tmp_path)["rollout/episodes"].values()) == 12


def test_wrappers_of_a_yaml_go_to_workers(tmp_path, model_folder):
    """They are sent as their class and settings: with the parser that made them, nothing could be sent while
    other workers run, and each would load torch."""
    wrappers = "[{class_path: helpers.wrappers.PaidWithoutTorch, init_args: {reward: 5}}]"
    options = {"data__subprocess_envs": "true", "data__wrappers": wrappers, "trainer__max_epochs": 1}
    lgym("fit", tmp_path, model_folder, **FEW, **options)
    logged = scalars(tmp_path)
    assert list(logged["rollout/return_mean"].values()) == [5.0]
    assert list(logged["val_greedy/return_mean"].values()) == [
        5.0,
        5.0,
    ]  # before the first step, and at the end


def test_ctrl_c_ends_the_workers(tmp_path, model_folder, monkeypatch):
    """Lightning tears a data module down only after a run that came to its end."""

    def interrupted(self, *args):
        assert len(multiprocessing.active_children()) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr(Collector, "_step", interrupted)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, data__subprocess_envs="true", **FEW)
