"""The agent's fallbacks, turn by turn: what happens where no action can be read from a response."""

from __future__ import annotations

import string

import gymnasium
import pytest

from helpers import echo
from helpers.collectors import make_runner
from helpers.scripted import text_response
from lgym.agents import GeneralAgent
from lgym.data.rollout.env_runner import EnvRunner
from lgym.policies.distribution_cache import choice_response


def start_runner(fallback, seed=3, **members) -> EnvRunner:
    agent = type("Agent", (echo.CountingAgent,), {"fallback": fallback, **members})()
    env = gymnasium.make("Counting-v0", max_episode_steps=50)
    runner = make_runner(env, agent, scores_candidates=False)
    runner.reset(seed)
    return runner


def actions(runner, *answers):
    """The actions that the environment was given: its unwrapped step is listened to."""
    given_actions: list[int] = []
    env = runner._env.env.unwrapped
    step = env.step
    env.step = lambda action: (given_actions.append(int(action)), step(action))[1]
    for answer in answers:
        runner.step(text_response(answer))
    return given_actions


def test_an_action_that_can_be_read_is_taken():
    runner = start_runner("penalize")
    assert actions(runner, "go on", " STOP ") == [1, 0]
    assert runner.parsed


def test_penalize_waits_and_pays():
    """The environment is not stepped; the same observation is asked again."""
    runner = start_runner("penalize", penalty=-0.5)
    before = runner.prompt
    assert runner.step(text_response("what?")) == (-0.5, False, False)
    assert not runner.parsed
    assert runner.prompt is before
    assert runner.episode_return == -0.5
    assert runner.step(text_response("go on"))[0] == 1.0
    assert runner.parsed


def test_penalize_loses_patience():
    """Otherwise a model that never says an action would play one episode for ever. An answer that is read
    starts anew."""
    runner = start_runner("penalize", patience=2)
    ends = [runner.step(text_response(answer))[1:] for answer in ("?", "go on", "?", "?")]
    assert ends == [(False, False), (False, False), (False, False), (True, False)]
    assert not runner.live


def test_values_have_a_fixed_point_if_nothing_can_be_read():
    """Had patience truncated the episode, its last turn would bootstrap on the value of the very observation
    that it began with: each rollout would add the same penalties again, to values without end."""
    runner = start_runner("penalize", patience=3, penalty=-1.0)
    value = 0.0
    for _ in range(4):  # rollouts, after each of which the value is what was returned
        runner.reset(3)
        rewards, ends = [], (False, False)
        while runner.live:
            reward, *ends = runner.step(text_response("?"))
            rewards.append(reward)
        value = sum(rewards) + (value if ends[1] else 0.0)
        assert value == -3.0  # three penalties, however often
        assert runner.episode_penalty == runner.episode_return == -3.0


def test_end_episode_terminates():
    runner = start_runner("end_episode", penalty=-2.0)
    assert runner.step(text_response("")) == (-2.0, True, False)
    assert not runner.live


def test_default_and_repeat():
    assert actions(start_runner("default", default_action=1), "?", "stop", "?") == [1, 0, 1]
    assert actions(start_runner("repeat"), "go on", "?", "stop", "?", "?") == [1, 1, 0, 0, 0]


def test_random_is_any_action_and_the_same_for_the_same_seed():
    """An episode is brought back by its reset seed and its answers."""
    runs = [actions(start_runner("random", seed=seed), *["?"] * 40) for seed in (3, 3, 4)]
    assert set(runs[0]) == {0, 1}
    assert runs[0] == runs[1] != runs[2]


def test_an_episode_with_fallbacks_is_brought_back():
    """A resumed run does so, unread answers included."""
    runner = start_runner("random")
    for answer in ("?", "go on", "", "?"):
        runner.step(text_response(answer))
    state = runner.state_dict()
    other = start_runner("random", seed=9)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.prompt.observation_text == runner.prompt.observation_text


def test_an_unknown_fallback_is_refused_when_the_class_is_made():
    with pytest.raises(TypeError, match="fallback is 'shrug': choose one of penalize"):
        start_runner("shrug")


class Mute(gymnasium.Env):
    """Says which commands there are, but for the observation that its own time limit ends with."""

    observation_space = action_space = gymnasium.spaces.Text(20, charset=string.printable)

    def reset(self, *, seed=None, options=None):
        return "go", {"admissible_commands": ["up", "down"]}

    def step(self, action):
        return "over", 0.0, False, True, {}


def test_a_truncated_episode_needs_no_candidates():
    """Nobody will choose between them; the prompt is there for its value alone."""
    agent = GeneralAgent()
    agent.bind(Mute())
    runner = make_runner(Mute(), agent)
    runner.reset(0)
    assert runner.step(choice_response(runner.prompt, 0)) == (0.0, False, True)
    assert runner.prompt.observation_text == "over"
    assert runner.prompt.candidates == ("down", "up")
