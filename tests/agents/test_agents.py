"""What every built-in agent promises, and the defaults of `TextAgent`."""

import re

import gymnasium
import numpy as np
import pytest

import lgym.agents
from lgym.agents import (
    BabyAIAgent,
    BlackjackAgent,
    BlackjackJsonAgent,
    CartPoleAgent,
    CliffWalkingAgent,
    FrozenLakeAgent,
    GeneralAgent,
    GuessNumberAgent,
    MazeAgent,
    SokobanAgent,
    TaxiAgent,
    TextAgent,
    TextWorldAgent,
)
from lgym.envs import blackjack

ENV_OF = {
    BlackjackAgent: "Blackjack-v1",
    BlackjackJsonAgent: "Blackjack-v1",
    CartPoleAgent: "CartPole-v1",
    CliffWalkingAgent: "CliffWalking-v1",
    FrozenLakeAgent: "FrozenLake-v1",
    GeneralAgent: "MountainCar-v0",
    GuessNumberAgent: "lgym/GuessNumber-v0",
    MazeAgent: "lgym/Maze-v0",
    SokobanAgent: "lgym/Sokoban-v0",
    TaxiAgent: "Taxi-v4",
}


@pytest.fixture(params=ENV_OF, ids=lambda agent: agent.__name__)
def agent(request) -> TextAgent:
    agent = request.param()
    agent.bind(gymnasium.make(ENV_OF[request.param]))
    return agent


@pytest.fixture
def env(agent):
    return gymnasium.make(ENV_OF[type(agent)], disable_env_checker=True)


def random_observations(env, count):
    """Observations, with their info, of a player who acts at random."""
    env.action_space.seed(0)
    observation, info = env.reset(seed=0)
    for _ in range(count):
        yield observation, info
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, info = env.reset()


class Lift(TextAgent):
    """The smallest agent with named actions."""

    system_prompt = "Go up or down."
    actions = ("Down", "Up")

    def format_observation(self, observation):
        return f"Floor {observation}"


class Poet(TextAgent):
    """An agent that speaks freely and has not said how to read an answer."""

    system_prompt = "Write a poem."

    def format_observation(self, observation):
        return str(observation)


def test_every_built_in_agent_is_tested_here():
    """A new agent left out of this file's table would be promised and not tested. TextWorld's and
    BabyAI's need packages, and have files of their own."""
    built_in = {getattr(lgym.agents, name) for name in lgym.agents.__all__} - {
        TextAgent,
        TextWorldAgent,
        BabyAIAgent,
    }
    assert built_in == set(ENV_OF)


def test_system_prompt_is_not_empty(agent):
    """A model that is told no rules cannot play."""
    assert agent.system_prompt.strip()


def test_observations_read_as_text(agent, env):
    """An observation the agent cannot put in words, or leaves empty, stops or blinds the player."""
    texts = [agent.format_observation(observation) for observation, _ in random_observations(env, 50)]
    assert all(isinstance(text, str) and text.strip() for text in texts)
    assert len(set(texts)) > 1


def test_candidates_are_legal_actions_in_order(agent, env):
    """A candidate that parses to another action than the one offered teaches the model the wrong word."""
    for observation, info in random_observations(env, 50):
        parsed = [agent.parse(text) for text in agent.candidates(observation, info) or ()]
        assert all(action.ok and env.action_space.contains(action.action) for action in parsed)
        assert len({action.action for action in parsed}) == len(parsed)


@pytest.mark.parametrize("rubbish", ["", "  ", "qwertz", "{}"])
def test_rubbish_is_a_failure_to_parse(agent, rubbish):
    """Rubbish silently played as some action would be credited to words that mean nothing."""
    parsed = agent.extract_action(rubbish)
    assert not parsed.ok
    assert parsed.action is None
    assert repr(rubbish) in parsed.reason


def test_baselines_are_finite(agent):
    """A baseline that is no number cannot be drawn beside the curve."""
    assert all(np.isfinite(value) for value in agent.reference_returns().values())


def test_blackjack_texts_tell_all_states_apart():
    """Two states that read the same cannot be played differently."""
    agent = BlackjackAgent()
    assert len({agent.format_observation(state) for state in blackjack.states()}) == 280


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ((14, 10, 0), "Your hand: hard fourteen against ten"),
        ((17, 1, 1), "Your hand: soft seventeen against ace"),
    ],
)
def test_blackjack_text(observation, text):
    """Soft and hard mixed up, or the ace called 1, would contradict the prompt."""
    assert BlackjackAgent().format_observation(observation) == text
    assert BlackjackAgent().format_observation(tuple(np.int64(part) for part in observation)) == text


def test_blackjack_words_are_gymnasiums_numbers():
    """Hit and stay swapped: the hand that must bust would win."""
    agent = BlackjackAgent()
    assert agent.extract_action(" Hit\n").action == 1  # Gymnasium: 0 = stick, 1 = hit
    assert agent.extract_action("stay").action == 0


def test_blackjack_baselines_are_exact():
    """A curve drawn beside wrong baselines says that the model plays better or worse than it does."""
    expected = {"random": -0.3942, "always stay": -0.1829, "hit below 17": -0.0759, "optimal": -0.0431}
    assert BlackjackAgent().reference_returns() == pytest.approx(expected, abs=5e-5)


def test_changing_the_baselines_does_not_change_the_next_ones():
    """A shared cached dict would carry one caller's entry over to all others."""
    BlackjackAgent().reference_returns()["mine"] = 0.0
    assert "mine" not in BlackjackAgent().reference_returns()


def test_actions_are_found_whatever_the_case():
    """Names written with capitals must be found too, and partial words must not."""
    assert Lift().extract_action("uP ").action == 1
    assert not Lift().extract_action("up and down").ok


def test_candidates_default_to_the_actions():
    """An agent with names offers them; one without must say `None`, as an empty list offers nothing to choose
    from."""
    assert list(Lift().candidates(3, {})) == ["Down", "Up"]
    assert Poet().candidates(3, {}) is None


def test_an_agent_without_actions_must_read_its_answers():
    """Without names every answer would be a failure to parse, and nothing would say why."""
    with pytest.raises(TypeError, match="Poet has no `actions`.*override `extract_action`"):
        Poet().extract_action("a rose")


def test_no_baselines_by_default():
    """An agent that knows no baseline must not invent one."""
    assert Lift().reference_returns() == {}


def test_an_agent_without_a_prompt_is_refused():
    """Otherwise the first episode, minutes later, is where it stops."""

    class Silent(TextAgent):
        def format_observation(self, observation):
            return ""

    with pytest.raises(TypeError, match="Silent.*system_prompt"):
        Silent()


def test_a_prompt_may_be_a_property():
    """Prompts that depend on the agent's own settings need it."""

    class Sized(Lift):
        def __init__(self, floors):
            self.floors = floors

        @property
        def system_prompt(self):
            return f"{self.floors} floors."

    assert Sized(7).system_prompt == "7 floors."


def test_a_prompt_that_is_a_method_is_refused():
    """A forgotten @property would put '<bound method ...>' before the model."""
    with pytest.raises(TypeError, match="Method.system_prompt is a method"):

        class Method(Lift):
            def system_prompt(self):
                return "Go."


def test_actions_in_one_string_are_refused():
    """('hit') is a string: its candidates would be h, i and t."""
    with pytest.raises(TypeError, match="One.actions is one string, 'hit'"):

        class One(Lift):
            actions = "hit"


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ([0.0, 0.39, 0.01, -0.2], "cart middle still, pole upright still"),
        ([0.4, -0.4, 0.0175, 0.25], "cart right moving left, pole slightly right turning right slowly"),
        ([-1.3, 1.2, -0.06, -0.75], "cart far left moving right fast, pole left turning left"),
        ([1.2, -3.0, 0.2, 1.5], "cart far right moving left fast, pole far right turning right fast"),
    ],
)
def test_cartpole_in_words(observation, text):
    """0.0175 rad are 1.003 degrees, 0.06 are 3.4, 0.2 are 11.5."""
    assert CartPoleAgent().format_observation(np.array(observation)) == text


def test_cartpoles_words_are_precise_enough_for_every_step():
    """A rule on nothing but the words (lean + turning + a little of the cart's speed and place) balances to
    the end."""
    sizes = {"slowly": 1.0, "": 2.0, "fast": 4.0}
    agent, env = CartPoleAgent(), gymnasium.make("CartPole-v1")
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        steps, over = 0, False
        while not over:
            cart, pole = agent.format_observation(observation).split(", ")
            push = 2.0 * _signed(
                pole, r"pole (slightly|far|) ?(left|right)", {"slightly": 1.0, "": 2.0, "far": 4.0}
            )
            push += 7.2 * _signed(pole, r"turning (left|right) ?(slowly|fast|)", sizes) / 2
            push += 2.3 * _signed(cart, r"cart (far|) ?(left|right)", {"": 1.0, "far": 2.0})
            push += 4.6 * _signed(cart, r"moving (left|right) ?(fast|)", {"": 1.0, "fast": 2.0})
            observation, _, terminated, truncated, _ = env.step(int(push > 0))
            steps, over = steps + 1, terminated or truncated
        assert steps == 500


def _signed(text, pattern, sizes):
    """The size that the words name, negative to the left, 0 where they name none."""
    match = re.search(pattern, text)
    if match is None:
        return 0.0
    side, size = match.groups() if match[1] in ("left", "right") else reversed(match.groups())
    return sizes[size] * (1 if side == "right" else -1)
