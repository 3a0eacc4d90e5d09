"""Frozen lakes: their worth, and maps that follow from the reset seed."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from lgym.envs import make_env
from lgym.envs.frozen_lake import RandomFrozenLakeEnv, reference_returns


def maps(env, seeds):
    return [env.reset(seed=seed)[0]["map"] for seed in seeds]


def test_baselines_of_the_4x4_lake():
    """Not slippery, the best always arrives, and so it does in 6 steps but never in 5. Slippery, nobody does
    better than 0.7442 in 100 steps. At random, both are the same: a random move that slips is a random
    move."""
    dry, slippery = FrozenLakeEnv(is_slippery=False), FrozenLakeEnv()
    assert reference_returns(dry) == pytest.approx({"random": 0.0139398, "optimal": 1.0}, abs=1e-6)
    assert reference_returns(slippery) == pytest.approx({"random": 0.0139398, "optimal": 0.7441903}, abs=1e-6)
    assert reference_returns(dry, 6)["optimal"] == 1.0
    assert reference_returns(dry, 5)["optimal"] == 0.0


def test_baselines_of_random_lakes_are_means():
    env = RandomFrozenLakeEnv(first_map=5, maps=2, is_slippery=True)
    one, two = (reference_returns(FrozenLakeEnv(desc=generate_random_map(4, 0.8, seed))) for seed in (5, 6))
    assert one != two
    assert reference_returns(env) == pytest.approx({name: (one[name] + two[name]) / 2 for name in one})


def test_the_map_follows_from_the_seed():
    env = make_env("lgym/RandomFrozenLake-v0")
    assert maps(env, range(5)) == maps(make_env("lgym/RandomFrozenLake-v0"), range(5))
    assert len(set(maps(env, range(20)))) > 15


def test_training_and_evaluation_have_maps_of_their_own():
    """Each map has a number; the ranges have none in common."""
    train = make_env("lgym/RandomFrozenLake-v0", {"maps": 3, "size": 6})
    held_out = make_env("lgym/RandomFrozenLake-v0", {"first_map": 3, "maps": 3, "size": 6})
    all_of = ["\n".join(generate_random_map(6, 0.8, seed)) for seed in range(6)]
    assert set(maps(train, range(40))) == set(all_of[:3])
    assert set(maps(held_out, range(40))) == set(all_of[3:])


@pytest.mark.parametrize("slippery", [False, True])
def test_it_moves_as_frozen_lake_does(slippery):
    """The same seed for both draws the same slides, once the number of the map is drawn."""
    env = make_env("lgym/RandomFrozenLake-v0", {"is_slippery": slippery, "reward_schedule": [2, -1, 0]})
    observation, _ = env.reset(seed=3)
    lake = FrozenLakeEnv(
        desc=observation["map"].split("\n"), is_slippery=slippery, reward_schedule=(2, -1, 0)
    )
    lake.reset(seed=3)
    lake.np_random.bit_generator.state = env.unwrapped.np_random.bit_generator.state
    assert env.observation_space.contains(observation)
    for action in (1, 2, 1, 2, 0, 3, 1, 2, 2):
        seen, *outcome = env.step(action)
        position, *expected = lake.step(action)
        assert [seen["position"], *outcome] == [position, *expected]
        if outcome[1]:
            break


def test_a_slippery_lake_slips():
    env = make_env("lgym/RandomFrozenLake-v0", {"is_slippery": True, "p": 1.0})
    places = set()
    for seed in range(20):
        env.reset(seed=seed)
        places.add(env.step(1)[0]["position"])
    assert places == {0, 1, 4}  # down, or to either side: left is a wall


def test_rendering():
    env = make_env("lgym/RandomFrozenLake-v0", {"render_mode": "ansi"})
    env.reset(seed=0)
    assert "G" in env.render()


@pytest.mark.parametrize("wrong", [{"size": 1}, {"p": 0.0}, {"maps": 0}, {"first_map": -1}])
def test_settings_that_make_no_lake_are_refused(wrong):
    """With p=0 a map would be drawn for ever."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        RandomFrozenLakeEnv(**wrong)


def test_gymnasiums_own_checks(recwarn):
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make("lgym/RandomFrozenLake-v0").unwrapped, skip_render_check=True)
