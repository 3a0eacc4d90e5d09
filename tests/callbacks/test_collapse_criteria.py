"""What counts as a sign of collapse, metric by metric."""

from __future__ import annotations

import pytest

from lgym.callbacks import CollapseGuard
from lgym.callbacks.collapse_criteria import CollapseDetector

HEALTHY = {
    "rollout/episodes_reported": 100.0,
    "rollout/return_mean": 0.5,
    "rollout/return_std": 0.5,  # 0.05 the standard error
    "rollout/dominant_action": 0.6,
    "policy/action_state_mi": 0.1,
    "rollout/repetition": 0.1,
    "rollout/parse_rate": 0.9,
    "policy/old_kl": 0.02,
    "policy/entropy": 0.4,
    "rollout/return_variance_within": 0.2,
    "rollout/return_variance_across": 0.1,
    "value/explained_variance": 0.3,
}
FALLEN = {"rollout/return_mean": 0.29}
"""0.29 + 2 * 0.05 = 0.39 is below 0.5 - 2 * 0.05 = 0.4."""

TABLE = {
    "max_dominant_action": ("rollout/dominant_action", 0.951, 0.949),
    "min_action_information": ("policy/action_state_mi", 0.0019, 0.0021),  # 0.02 of 0.1
    "max_repetition": ("rollout/repetition", 0.51, 0.49),
    "min_parse_rate": ("rollout/parse_rate", 0.449, 0.451),  # 0.5 of 0.9
    "max_kl": ("policy/old_kl", 0.51, 0.49),
    "min_entropy": ("policy/entropy", 0.0049, 0.0051),
    "min_variance_within": ("rollout/return_variance_within", 0.0019, 0.0021),  # 0.01 of 0.2
    "min_variance_across": ("rollout/return_variance_across", 0.0009, 0.0011),  # 0.01 of 0.1
    "min_explained_variance": ("value/explained_variance", -0.51, -0.49),
}
"""Of each limit with its default: its metric, a value just wrong, and one just right."""


def only(**limits):
    """A detector with these limits and no others."""
    return CollapseDetector(**{**dict.fromkeys(TABLE), **limits})


ONLY_FALLEN = {"min_entropy", "min_variance_within", "min_variance_across", "min_explained_variance"}


@pytest.mark.parametrize("name", TABLE)
def test_each_metric_has_its_sign(name):
    """Catches a limit that is not looked at, on the wrong side, on the wrong scale or under another metric's
    name."""
    metric, wrong, right = TABLE[name]
    detector = CollapseGuard().detector
    assert detector.detect(HEALTHY) == []
    assert detector.detect({**HEALTHY, **FALLEN, metric: right}) == []
    (sign,) = detector.detect({**HEALTHY, **FALLEN, metric: wrong})
    assert sign.startswith(f"{metric} is {wrong:.4g}, ")
    assert bool(detector.detect({**HEALTHY, metric: wrong})) == (name not in ONLY_FALLEN)


@pytest.mark.parametrize("name", TABLE)
def test_null_switches_one_off(name):
    """And no other."""
    detector = CollapseGuard(**{name: None}).detector
    detector.detect(HEALTHY)
    for other, (metric, wrong, _) in TABLE.items():
        found = detector.detect({**HEALTHY, **FALLEN, metric: wrong})
        assert bool(found) == (other != name)


def test_every_limit_is_in_the_table():
    metrics = [
        criterion.metric
        for criterion in CollapseDetector().criteria
        if criterion.metric != "policy/approx_kl"
    ]
    assert metrics == [metric for metric, _, _ in TABLE.values()]


def test_what_a_run_begins_with_is_not_held_against_it():
    """Catches an alarm at an untrained model; once it has been better, the same is a sign. The KL is one at
    once."""
    detector = only(max_dominant_action=0.95, max_kl=0.5)
    stays = {**HEALTHY, "rollout/dominant_action": 0.99}
    assert detector.detect(stays) == detector.detect(stays) == []
    assert detector.detect(HEALTHY) == []
    assert len(detector.detect(stays)) == 1
    assert len(only(max_kl=0.5).detect({**HEALTHY, "policy/approx_kl": 0.6})) == 1


def test_a_fall_within_chance_is_none():
    """0.31 + 0.1 is not below 0.4; and where no episode ended, nothing is known."""
    detector = only(min_entropy=0.005)
    detector.detect(HEALTHY)
    gone = {**HEALTHY, "policy/entropy": 0.0}
    assert detector.detect({**gone, "rollout/return_mean": 0.31}) == []
    assert detector.detect({**gone, "rollout/return_mean": -9.0, "rollout/episodes_reported": 0.0}) == []
    assert len(detector.detect({**gone, "rollout/return_mean": 0.29})) == 1


def test_a_solved_game_is_no_collapse():
    """Mean returns of -1, then 0.9551 without any deviation, so without a standard error: 0.9549 was "a
    fall". The range is -1.5 (a deviation of 0.5 below the first) to 0.9551, a hundredth of it 0.0246, so the
    first fall is below 0.9305."""
    solved = {**HEALTHY, "policy/entropy": 0.0003, "rollout/return_std": 0.0}
    detector = only(min_entropy=0.005)
    detector.detect({**HEALTHY, "rollout/return_mean": -1.0})
    assert detector.detect({**solved, "rollout/return_mean": 0.9551}) == []
    for still_solved in (0.9549, 0.931):
        assert detector.detect({**solved, "rollout/return_mean": still_solved}) == []
    (sign,) = detector.detect({**solved, "rollout/return_mean": 0.930})
    assert "the mean return is 0.93 after 0.9551" in sign
    again = only(min_entropy=0.005)
    again.load_state_dict(detector.state_dict())
    again.armed = {"policy/entropy"}
    assert again.detect({**solved, "rollout/return_mean": 0.931}) == [], "a resumed run knows the range"


def test_the_highest_and_the_best_are_those_of_sound_rollouts():
    """Catches a collapse that raises its own standard, such as always-stay, which is better than random
    play."""
    detector = only(max_dominant_action=0.95, min_variance_within=0.01)
    detector.detect(HEALTHY)
    detector.detect(
        {
            **HEALTHY,
            "rollout/dominant_action": 1.0,
            "rollout/return_mean": 0.9,
            "rollout/return_variance_within": 99.0,
        }
    )
    assert detector.best == (0.5, 0.05)
    assert detector.highest == {"rollout/return_variance_within": 0.2}


def test_what_is_missing_or_no_number_is_no_sign():
    """Explained variance is NaN where returns do not vary."""
    detector = CollapseGuard().detector
    detector.detect(HEALTHY)
    assert detector.detect({}) == []
    assert detector.detect({**HEALTHY, **FALLEN, "value/explained_variance": float("nan")}) == []
    detector = only(max_dominant_action=0.95)
    detector.detect({"rollout/dominant_action": float("nan")})
    assert detector.detect({"rollout/dominant_action": 0.99}) == []  # nor was it on the right side before


def test_a_detector_goes_on_from_its_state():
    """Catches a resumed run that has forgotten what it was like."""
    one, other = CollapseGuard().detector, CollapseGuard().detector
    one.detect(HEALTHY)
    other.load_state_dict(one.state_dict())
    for metric, wrong, _ in TABLE.values():
        bad = {**HEALTHY, **FALLEN, metric: wrong}
        assert other.detect(bad) == one.detect(bad) != []
    assert other.state_dict() == one.state_dict()
