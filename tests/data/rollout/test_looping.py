"""Episodes that go in circles until the time limit."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch

from helpers.collectors import make_collector
from helpers.echo import CountingAgent, EchoAgent
from helpers.rollouts import text_rollout
from helpers.scripted import FirstCandidatePolicy
from lgym.data.rollout.looping import looping_episodes


def test_the_second_half_must_lead_to_something_new():
    """Episodes 0, 0, 2 and 1, 1, 3. Of the two turns of 0 the second is new; of those of 1 the first, which
    is the first half. 2 terminated, and 3 was cut by the rollout's end."""
    truncated = torch.tensor([[False, True, False], [False, True, True]])
    rollout = text_rollout(
        first_visits=torch.tensor([[0, 5, 0], [5, 0, 0]]),
        truncated=truncated,
        cut=torch.tensor([[False, False, False], [False, False, True]]),
        terminated=torch.tensor([[False, False, True], [False, False, False]]),
    )
    assert looping_episodes(rollout).tolist() == [False, True, False, False]


def test_a_walk_among_three_words_goes_in_circles_and_counting_does_not():
    """20 turns each, ended by the time limit, on two environments that play five episodes."""
    for env_id, agent, kwargs, expected in (
        ("Echo-v0", EchoAgent(), {"turns": 100}, True),
        ("Counting-v0", CountingAgent(), {}, False),
    ):
        envs = [gymnasium.make(env_id, max_episode_steps=20, **kwargs) for _ in range(2)]
        rollout = make_collector(envs, agent).play(
            FirstCandidatePolicy(), np.random.default_rng(0), episodes=5
        )
        assert looping_episodes(rollout).tolist() == [expected] * 5
