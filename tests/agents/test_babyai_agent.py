"""BabyAI's levels in GLAM's words."""

from __future__ import annotations

import pytest

from lgym.agents import BabyAIAgent
from lgym.agents.experts import BabyAIBot
from lgym.data.prompts.memory_prompt import MemoryPrompt
from lgym.envs import make_env
from lgym.memory import Memory, RememberedTurn, WorkingMemory

pytest.importorskip("minigrid")


@pytest.fixture
def env():
    env = make_env("BabyAI-GoToLocal-v0")
    yield env
    env.close()


def test_an_observation_is_the_mission_and_what_is_seen(env):
    observation, _ = env.reset(seed=0)
    text = BabyAIAgent().format_observation(observation)
    assert text.startswith("Mission: go to the green ball. You see ")
    assert "You face" not in text


def test_actions_are_the_environments_first_six(env):
    """Catches names in another order: each is what the level has under its number."""
    numbers = [
        env.unwrapped.actions[name] for name in ("left", "right", "forward", "pickup", "drop", "toggle")
    ]
    assert [BabyAIAgent().parse(name).action for name in BabyAIAgent.actions] == numbers


def test_what_the_bot_does_can_be_said(env):
    """Its plans never take the seventh action, which ends nothing here."""
    bot, agent = BabyAIBot(), BabyAIAgent()
    for seed in range(10):
        observation, info = env.reset(seed=seed)
        bot.begin(env)
        done, reward = False, 0.0
        while not done:
            action = agent.parse(agent.actions[bot.act(observation, info)]).action
            observation, reward, terminated, truncated, info = env.step(action)
            done = terminated or truncated
        assert reward > 0


def test_levels_that_are_drawn_again_are_not_printed(env, capsys):
    """Of these, minigrid draws a dozen again, and says so on standard output, across the progress bar."""
    for seed in range(100):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""


def test_a_working_memory_is_the_last_answers():
    """Without the views before, which would make prompts as long as with `data.history`."""
    turns = [RememberedTurn("a view", answer, 0.0) for answer in ("pick up", "turn left", "go forward")]
    agent = BabyAIAgent()
    memory = MemoryPrompt(agent, WorkingMemory(turns=2))
    assert memory.read("You see a door.") == "You see a door."
    assert memory.read("You see a door.", turns) == "You see a door. You did: turn left, go forward."
    shown = agent.render_memory("You see a door.", "toggle", [Memory("drop", 0.5, 0, 1.0)])
    assert "drop; return +0.5" in shown
    assert shown.endswith("You see a door. You did: toggle.")
