"""The words of well-known environments, without any setting."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import AcrobotEnv
from gymnasium.spaces import Box
from gymnasium.wrappers import DiscretizeAction, RescaleObservation, TransformAction

from lgym.agents import GeneralAgent
from lgym.envs import make_env

HALF = np.float64(0.5**0.5)

KNOWN = {
    "CartPole-v1": ([0.5, 0, 0.1, 0], "cart right still, pole right still", "left, right"),
    "MountainCar-v0": (
        [-0.53, 0.001],
        "position: -0.5 m, velocity: slowly right",
        "left, wait, right",
    ),
    "Acrobot-v1": (
        [1, 0, HALF, -HALF, -0.1, 4],
        "first link: down, second link: slightly left, first link speed: slowly left, "
        "second link speed: fast right",
        "left, wait, right",
    ),
    "Blackjack-v1": ((16, 10, 0), "Your hand: hard sixteen against ten", "stay, hit"),
    "FrozenLake-v1": (
        0,
        "Ice: down, right. Wall: left, up. Goal: 3 down and 3 right",
        "left, down, right, up",
    ),
    "CliffWalking-v1": (
        30,
        "Row 2, column 6. Free: up, right, left. Cliff: down. Goal: 1 down and 5 right",
        "up, right, down, left",
    ),
    "Taxi-v4": (1, "Free: down, right. Wall: left, up. Passenger: here", "down, up, right, left, pick, drop"),
}

LANDER = (
    "x: right, y: 1.0, drift: fast left, fall: very fast, tilt: left, spin: slowly right, "
    "left leg: down, right leg: up"
)


def bound(env, **settings):
    agent = GeneralAgent(**settings)
    agent.bind(env)
    return agent


@pytest.mark.parametrize("name", KNOWN)
def test_names_and_words(name):
    observation, text, actions = KNOWN[name]
    agent = bound(make_env(name))
    assert agent.format_observation(observation) == text
    assert ", ".join(agent.actions) == actions
    assert not agent.system_prompt.startswith(f"You play {name.split('-')[0]}.")
    assert agent.system_prompt.endswith(f". Answer with one of these: {actions}.")


def test_the_texts_are_few():
    """2,000 random turns of each: every distinct prompt of a rollout is computed."""
    most = {"CartPole-v1": 150, "MountainCar-v0": 60, "Acrobot-v1": 250}
    for name, limit in most.items():
        env = make_env(name)
        agent, texts = bound(env), set()
        env.action_space.seed(0)
        observation, _ = env.reset(seed=0)
        for _ in range(2000):
            texts.add(agent.format_observation(observation))
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()
        assert 10 < len(texts) < limit, name


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_continuous_actions_once_discretized(name):
    """Their names are the numbers that they stand for."""
    agent = bound(DiscretizeAction(make_env(name), bins=3))
    assert agent.actions[1] == "0.00"
    if name == "Pendulum-v1":
        assert (
            agent.format_observation([0, 1, -0.1]) == "pole: 90 degrees left, angular velocity: slowly right"
        )


def test_box2d():
    pytest.importorskip("Box2D")
    lander = bound(make_env("LunarLander-v3"))
    assert lander.format_observation([0.1, 1.01, -0.5, -1, 0.1, -0.1, 1, 0]) == LANDER
    assert lander.actions[2] == "main"
    walker = bound(DiscretizeAction(make_env("BipedalWalker-v3"), bins=2))
    text = walker.format_observation([0.0] * 24)
    assert text.startswith("hull angle: middle, hull angular velocity: still")
    assert text.endswith("leg 2 contact: in the air, " + ", ".join(f"distance {n}: far" for n in range(10)))


def test_settings_win():
    """Each leaves the rest as it is known, unless that goes by other names."""
    env = make_env("MountainCar-v0")
    show = [-0.53, 0.0123]
    for settings, text in {
        (("decimals", 3),): "position: -0.530 m, velocity: 0.012",
        (("resolution", 0.2),): "position: -0.6 m, velocity: 0.0",
        (("names", ("x", "v")),): "x: -0.53, v: 0.012",
        (("drop", ("position",)),): "velocity: fast right",
        (("parts", ("velocity", "position")),): "velocity: fast right, position: -0.5 m",
    }.items():
        assert bound(env, **dict(settings)).format_observation(show) == text
    agent = bound(env, task="Climb.", actions=["left", "wait", "right"])
    assert agent.system_prompt == "Climb. Answer with one of these: left, wait, right."
    numbers = bound(make_env("CartPole-v1"), words=False).format_observation([0.5, 0, 0.1, 0])
    assert numbers.startswith("cart position: 0.50, cart velocity: 0.00, pole angle: 0.100")


def test_what_a_wrapper_changes_is_not_known():
    """The names of what was there before would lie."""
    env = make_env("MountainCar-v0")
    rescaled = bound(RescaleObservation(env, np.float32(0), np.float32(1)))
    assert rescaled.format_observation([0.25, 0.5]) == "0: 0.25, 1: 0.50"
    assert rescaled.actions[0] == "left"
    reversed_actions = TransformAction(env, lambda action: 1 - action, gymnasium.spaces.Discrete(2))
    assert bound(reversed_actions).actions == ("0", "1")


def test_a_class_of_ones_own_is_not_known():
    """It may observe something else."""

    class OtherAcrobot(AcrobotEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = Box(-1, 1, (2,))

    agent = bound(OtherAcrobot())
    assert agent.system_prompt.startswith("You play OtherAcrobot.")
    assert agent.format_observation([0, 1]) == "0: 0.00, 1: 1.00"


def test_reference_returns_are_those_of_the_built_in_agent():
    env = make_env("CliffWalking-v1", max_episode_steps=100)
    assert bound(env).reference_returns()["optimal"] == -13
    assert bound(env).reference_returns()["random"] < -1000
    assert bound(make_env("MountainCar-v0")).reference_returns() == {}
