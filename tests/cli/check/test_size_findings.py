"""Findings about rollouts in which no episode ends, and that take too long."""

from __future__ import annotations

import types

from lgym.cli.check.size_findings import duration_findings, length_findings
from lgym.data.random_play import RandomPlay


def settings(**changes):
    values = {
        "num_envs": 64,
        "turns_per_rollout": 8192,
        "episodes_per_rollout": None,
        "update_epochs": 4,
        "group_size": 1,
        "replay": None,
    }
    return types.SimpleNamespace(**{**values, **changes})


def test_no_episode_ends_within_a_rollout():
    """Acrobot: 64 environments x 128 turns, episodes of 500; with 16 environments each plays 512."""
    long = RandomPlay(lengths=[500, 500])
    (finding,) = length_findings(settings(), long)
    assert not finding.problem
    assert "128 turns of each" in finding.text
    assert "the shortest of 2 episodes, played at random, took 500" in finding.text
    assert "the first 4 rollouts" in finding.text
    assert "Set data.num_envs: 16 or data.turns_per_rollout: 32000." in finding.text
    assert not list(length_findings(settings(num_envs=16), long))
    assert not list(length_findings(settings(turns_per_rollout=None, episodes_per_rollout=8), long))
    assert not list(length_findings(settings(), RandomPlay(lengths=[500, 100])))  # some end


def test_an_episode_that_does_not_end_in_the_check_is_counted_as_far_as_it_went():
    """The longest so far; and where no number of environments is small enough, more turns."""
    unending = RandomPlay(longest=[("o", "a")] * 9000)
    (finding,) = length_findings(settings(), unending)
    assert "had not ended after 9000" in finding.text
    assert "Set data.turns_per_rollout: 576000." in finding.text


def test_a_rollout_of_more_than_a_quarter_of_an_hour():
    """1800 s are twice too much: half the turns, or of 1200 s of learning a quarter; 900 s are none."""
    costs = {"play_seconds": 600.0, "learn_seconds": 1200.0}
    (finding,) = duration_findings(settings(), costs, 0)
    assert not finding.problem
    assert "10 minutes to play and 20 to learn from" in finding.text
    assert "data.turns_per_rollout: 4096, or data.update_epochs: 1," in finding.text
    replay = types.SimpleNamespace(updates_per_rollout=24)
    (finding,) = duration_findings(settings(replay=replay), costs, 0)
    assert "or data.replay.updates_per_rollout: 6," in finding.text
    assert "max_new_tokens" not in finding.text
    by_episodes = settings(turns_per_rollout=None, episodes_per_rollout=72, group_size=8)
    (finding,) = duration_findings(by_episodes, {"play_seconds": 1800.0, "learn_seconds": 0.0}, 64)
    assert "data.episodes_per_rollout: 32, or the policy's max_new_tokens below its 64" in finding.text
    (finding,) = duration_findings(settings(), {"play_seconds": 900.0 * 512, "learn_seconds": 0.0}, 0)
    assert "data.turns_per_rollout: 16 with data.num_envs: 16" in finding.text  # 8192 / 512
    assert not list(duration_findings(settings(), {"play_seconds": 300.0, "learn_seconds": 600.0}, 0))
