"""What every built-in agent promises, and the defaults of `TextAgent`."""

import gymnasium
import numpy as np
import pytest

import lgym.agents
from lgym.agents import BlackjackAgent, CartPoleAgent, TextAgent
from lgym.agents.cartpole import ANGLE, PLACE, TURNING
from lgym.agents.words import NUMBERS
from lgym.envs import blackjack

ENV_OF = {BlackjackAgent: "Blackjack-v1", CartPoleAgent: "CartPole-v1"}


@pytest.fixture(params=ENV_OF, ids=lambda agent: agent.__name__)
def agent(request) -> TextAgent:
    return request.param()


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
    """A new agent left out of this file's table would be promised and not tested."""
    built_in = {getattr(lgym.agents, name) for name in lgym.agents.__all__} - {TextAgent}
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
        parsed = [agent.extract_action(text) for text in agent.candidates(observation, info)]
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
    assert all(np.isfinite(value) for value in agent.baselines().values())


def test_blackjack_texts_tell_all_states_apart():
    """Two states that read the same cannot be played differently."""
    agent = BlackjackAgent()
    assert len({agent.format_observation(state) for state in blackjack.states()}) == 280


@pytest.mark.parametrize(
    ("observation", "text"),
    [((14, 10, 0), "Your hand: hard fourteen against ten"), ((17, 1, 1), "Your hand: soft seventeen against ace")],
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
    expected = {"random": -0.3959, "always stay": -0.1864, "hit below 17": -0.0793, "optimal": -0.0466}
    assert BlackjackAgent().baselines() == pytest.approx(expected, abs=5e-5)


def test_changing_the_baselines_does_not_change_the_next_ones():
    """A shared cached dict would carry one caller's entry over to all others."""
    BlackjackAgent().baselines()["mine"] = 0.0
    assert "mine" not in BlackjackAgent().baselines()


def test_actions_are_found_whatever_the_case():
    """Names written with capitals must be found too, and partial words must not."""
    assert Lift().extract_action("uP ").action == 1
    assert not Lift().extract_action("up and down").ok


def test_candidates_default_to_the_actions():
    """An agent with names offers them; one without must say `None`, as an empty list offers nothing to choose from."""
    assert list(Lift().candidates(3, {})) == ["Down", "Up"]
    assert Poet().candidates(3, {}) is None


def test_an_agent_without_actions_must_read_its_answers():
    """Without names every answer would be a failure to parse, and nothing would say why."""
    with pytest.raises(TypeError, match="Poet has no `actions`.*override `extract_action`"):
        Poet().extract_action("a rose")


def test_no_baselines_by_default():
    """An agent that knows no baseline must not invent one."""
    assert Lift().baselines() == {}


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


def test_cartpole_in_words():
    """Position 1.2 m is 2.4 halves, speed -0.9 is 1.8, angle 0.1 rad is 5.7 degrees, turning -0.1 rounds away."""
    text = CartPoleAgent().format_observation(np.array([1.2, -0.9, 0.1, -0.1], dtype=np.float32))
    assert text == "pole right six turning middle, cart right two moving left two"


def test_cartpoles_words_are_precise_enough_for_every_step():
    """A rule on nothing but the words (angle + 0.1 s * turning + 0.1 s/m * speed) balances to the end."""
    units = {"pole": ANGLE, "turning": 0.1 * TURNING, "cart": 0.0, "moving": 0.1 * PLACE}
    agent, env = CartPoleAgent(), gymnasium.make("CartPole-v1")
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        steps, over = 0, False
        while not over:
            words = agent.format_observation(observation).replace(",", "").split()
            lean, what = 0.0, ""
            for word, following in zip(words, [*words[1:], ""], strict=True):
                what = word if word in units else what
                if word in ("left", "right"):
                    lean += (1 if word == "right" else -1) * units[what] * NUMBERS.index(following)
            observation, _, terminated, truncated, _ = env.step(int(lean > 0))
            steps, over = steps + 1, terminated or truncated
        assert steps == 500
