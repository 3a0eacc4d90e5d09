"""Exact metrics and picture of a run in the maze."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.runs import lgym, scalars
from lgym.agents import MazeAgent
from lgym.callbacks import MazeStrategy
from lgym.callbacks.exact_evaluation import action_probabilities
from lgym.envs import maze
from lgym.policies import CandidatePolicy
from lgym.rollout import Prompt

MAZE = {
    "trainer__callbacks": "lgym.callbacks.MazeStrategy",
    "data__env": "lgym/Maze-v0",
    "data__agent": "lgym.agents.MazeAgent",
    "data__max_episode_steps": 7,
    "data__minibatch_size": 64,
    "data__update_epochs": 1,
}


class ScriptedPolicy(CandidatePolicy):
    """Knows the probabilities of each prompt."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def prefetch(self, prompts):
        pass

    def distributions(self, prompts):
        return torch.tensor(self.rows).log()


def settings(env="lgym/Maze-v0", **changes):
    given = {"env_kwargs": None, "frame_skip": 1, "max_episode_steps": None, "history": 0} | changes
    return SimpleNamespace(env=env, prefetched_observations=(), **given)


def set_up(callback, data, policy=None):
    callback.setup(
        SimpleNamespace(datamodule=data), SimpleNamespace(policy=policy or CandidatePolicy()), "fit"
    )
    return callback


def test_probabilities_are_in_the_order_of_the_actions():
    """Candidates in another order, and fewer of them, whose row is filled up."""
    prompts = [
        Prompt((1,), ((1,), (2,), (3,), (4,)), ("down", "up", "left", "right"), ""),
        Prompt((2,), ((1,), (2,)), ("right", "left"), ""),
    ]
    policy = ScriptedPolicy([[0.4, 0.3, 0.2, 0.1], [0.75, 0.25, 0.0, 0.0]])
    data = SimpleNamespace(agent=MazeAgent(), prompts=lambda observations: prompts)
    module = SimpleNamespace(inference=lambda: nullcontext(policy))
    found = action_probabilities(data, module, [0, 1], 4)
    np.testing.assert_allclose(found, [[0.2, 0.1, 0.3, 0.4], [0.25, 0.75, 0, 0]], rtol=1e-6)


def test_metrics():
    """A sampled policy that is right with 0.7, whose likeliest moves are all right but one of 25, next to
    the goal, from where every start then fails."""
    right = maze.optimal_moves()
    policy = np.where(right, 0.7, 0.1)
    policy[-1] = [0.4, 0.2, 0.2, 0.2]
    callback = set_up(MazeStrategy(), settings())
    metrics = callback.metrics(policy)
    assert metrics["maze/agreement"] == pytest.approx(24 / 25)
    assert metrics["maze/value_greedy"] == pytest.approx(-100)
    assert metrics["maze/value_sampled"] == pytest.approx(maze.policy_value(policy))
    assert -40 < metrics["maze/value_sampled"] < -6.84
    assert callback.metrics(right.astype(float))["maze/value_greedy"] == pytest.approx(-6.84)


def test_values_are_within_the_runs_time_limit():
    callback = set_up(MazeStrategy(), settings(max_episode_steps=1))
    assert callback.metrics(maze.optimal_moves())["maze/value_greedy"] == pytest.approx(-24 / 25)
    texts = [text.get_text() for text in callback.chart(maze.optimal_moves(), "Rollout 4").texts]
    assert "Rollout 4" in texts
    assert any("-0.9600" in text for text in texts)


def test_episodes_are_played_by_the_same_answers():
    data = settings()
    set_up(MazeStrategy(), data)
    assert data.prefetched_observations == maze.START_CELLS
    data = settings(history=2)
    set_up(MazeStrategy(), data)
    assert data.prefetched_observations == ()


@pytest.mark.parametrize(
    "data",
    [
        settings(env="Taxi-v4"),
        settings(env_kwargs={"fully_observed": False}),
        settings(frame_skip=4),
        settings(max_episode_steps=-1),
    ],
)
def test_other_environments_are_refused(data):
    """Its values would be those of another one."""
    with pytest.raises(ValueError, match="MazeStrategy"):
        set_up(MazeStrategy(), data)


def test_text_generating_policies_are_refused():
    with pytest.raises(ValueError, match="MazeStrategy asks for the probabilities"):
        set_up(MazeStrategy(), settings(), policy=object())


def test_a_run_logs_and_draws_it(tmp_path, model_folder):
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=2, **MAZE)
    metrics = scalars(tmp_path)
    for name in ("maze/value_sampled", "maze/value_greedy"):
        assert len(metrics[name]) == 2
        assert all(-7.001 < value < -2 for value in metrics[name].values())
    assert all(0 <= value <= 1 for value in metrics["maze/agreement"].values())
    events = EventAccumulator(str(tmp_path / "version_0"), size_guidance={"images": 0})
    events.Reload()
    assert [(image.width, image.height) for image in events.Images("strategy")] == [(800, 700)] * 2
