"""Guessing a number: hints, bounds and exact values."""

from __future__ import annotations

import pytest
from gymnasium.utils.env_checker import check_env

from lgym.envs.guess_number import GuessNumberEnv, reference_returns


@pytest.fixture
def env():
    env = GuessNumberEnv(lowest=1, highest=20, guesses=4)
    env.reset(seed=0)
    env.number = 7
    return env


def test_hints_narrow_what_is_left(env):
    """A guess outside of what is left narrows nothing."""
    observations = [env.step(guess)[0].tolist() for guess in (10, 3, 15)]
    assert observations == [[1, 9, 1, 3], [4, 9, -1, 2], [4, 9, 1, 1]]


def test_the_right_guess_ends_the_episode_and_pays(env):
    assert env.step(3)[1:] == (0.0, False, False, {"success": False})
    assert env.step(7)[1:] == (1.0, True, False, {"success": True})


def test_the_last_guess_ends_it_unpaid(env):
    outcomes = [env.step(1)[1:3] for _ in range(4)]
    assert outcomes == [(0.0, False)] * 3 + [(0.0, True)]


def test_numbers_are_drawn_by_the_seed():
    env, numbers = GuessNumberEnv(0, 9), []
    for seed in [*range(200), 0]:
        env.reset(seed=seed)
        numbers.append(env.number)
    assert set(numbers) == set(range(10))
    assert numbers[0] == numbers[-1]


def test_guesses_of_the_same_seed_know_nothing():
    """Drawn alike, each of them would be the number."""
    env = GuessNumberEnv(guesses=1)
    env.action_space.seed(0)
    env.reset(seed=0)
    hits = 0
    for _ in range(50):
        hits += env.step(env.action_space.sample())[1]
        env.reset()
    assert hits < 5


def test_exact_values():
    """Of three numbers in two guesses: the middle one tells the rest, so the best is 1. At random: a third at
    once; else with the middle guess (1/3) the other is told, and with an outer one (2/3) two or none are
    left, of which one is hit: 1/3 + 2/3 (1/3 + 2/3 / 2) = 7/9."""
    assert reference_returns(3, 2) == {"random": pytest.approx(7 / 9), "optimal": 1.0}
    assert reference_returns(1025, 10)["optimal"] == pytest.approx(1023 / 1025)


def test_it_is_a_gymnasium_environment():
    check_env(GuessNumberEnv(render_mode="ansi"))


@pytest.mark.parametrize("settings", [{"highest": 0}, {"guesses": 0}, {"lowest": 5, "highest": 4}])
def test_settings_without_a_game_are_refused(settings):
    with pytest.raises(ValueError, match="give a highest number above the lowest, and at least one guess"):
        GuessNumberEnv(**settings)
