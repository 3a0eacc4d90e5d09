"""Levels of BabyAI that are mixed, and missions that are held out."""

from __future__ import annotations

import re

import pytest

from lgym.agents import GeneralAgent
from lgym.agents.experts import BabyAIBot
from lgym.envs import make_env

pytest.importorskip("minigrid")

HELD_OUT = ["red ball", "grey key"]


def missions(count=40, **env_kwargs):
    env = make_env("lgym/BabyAI-v0", env_kwargs)
    found = [env.reset(seed=seed)[0]["mission"] for seed in range(count)]
    env.close()
    return found


def test_missions_are_held_out():
    assert not any(part in mission for mission in missions(without=HELD_OUT) for part in HELD_OUT)
    assert all(any(part in mission for part in HELD_OUT) for mission in missions(only=HELD_OUT))


def test_one_part_need_not_be_a_list():
    """Catches a text that is read as a list of its letters, of which every mission has one."""
    assert all("red ball" in mission for mission in missions(10, only="red ball"))
    assert not any("ball" in mission for mission in missions(20, without="ball"))


def test_an_episode_follows_from_its_seed():
    """Catches draws that go on from one reset to the next: a resumed run would play others."""
    levels = ["BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0"]
    env = make_env("lgym/BabyAI-v0", {"levels": levels, "without": HELD_OUT})
    first = [env.reset(seed=seed)[0]["image"].tobytes() for seed in range(5)]
    assert [env.reset(seed=seed)[0]["image"].tobytes() for seed in range(4, -1, -1)] == first[::-1]


def test_levels_are_mixed():
    found = missions(levels=["BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0"])
    assert {mission.split()[0] for mission in found} == {"go", "pick"}


def test_nothing_is_printed_where_a_level_is_drawn_again(capsys):
    """Of 60 levels some have a thing that cannot be reached, which minigrid prints."""
    missions(60, levels="BabyAI-PickupLoc-v0")
    assert capsys.readouterr().out == ""


def test_a_thing_is_picked_up_before_or_after_the_way_to_another():
    found = missions(levels="lgym/BabyAI-PickupThenGoToLocal-v0")
    first, then = r"pick up (a|the) \w+ \w+", r"go to (a|the) \w+ \w+"
    orders = [f"{first}, then {then}", f"{then} after you {first}"]
    assert all(any(re.fullmatch(order, mission) for order in orders) for mission in found)
    assert all(any(re.fullmatch(order, mission) for mission in found) for order in orders)


@pytest.mark.parametrize(
    "levels",
    [
        ["BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0"],
        ["BabyAI-PutNextLocal-v0", "BabyAI-UnlockLocalDist-v0"],
        "lgym/BabyAI-PickupThenGoToLocal-v0",
    ],
)
def test_the_bot_fulfills_the_missions(levels):
    """Catches a planner that was given the level of another episode."""
    env = make_env("lgym/BabyAI-v0", {"levels": levels})
    GeneralAgent().bind(env)  # as MiniGrid's: the first try needs no agent
    bot = BabyAIBot()
    for seed in range(10):
        observation, info = env.reset(seed=seed)
        bot.begin(env)
        terminated = truncated = False
        while not (terminated or truncated):
            observation, reward, terminated, truncated, info = env.step(bot.act(observation, info))
        assert info["success"]


def test_an_unknown_level_is_refused():
    with pytest.raises(
        ValueError, match="'BabyAI-GoToMoon-v0', and there is no such level. There are .*GoToLocal-v0"
    ):
        make_env("lgym/BabyAI-v0", {"levels": "BabyAI-GoToMoon-v0"})


def test_missions_that_no_level_has_are_refused():
    env = make_env("lgym/BabyAI-v0", {"levels": "BabyAI-GoToObjS4-v0", "only": ["purple horse"]})
    with pytest.raises(ValueError, match=r"none was as only=\['purple horse'\].*The last one: 'go to"):
        env.reset(seed=0)
