"""What happens when nothing can be read from what the model said: each fallback, turn by turn."""

from __future__ import annotations

import gymnasium
import pytest
from lgym.data.slot import Slot

from helpers import echo, tiny
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.types import Said


def slot(fallback, seed=3, **members):
    agent = type("Agent", (echo.CountingAgent,), {"fallback": fallback, **members})()
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    made = Slot(gymnasium.make("Counting-v0", max_episode_steps=50), agent, builder, chooses=False)
    made.reset(seed)
    return made


def said(answer):
    return Said(answer, answer, tuple(tiny.tokenizer().encode(answer)), True)


def actions(made, *answers):
    """What the environment was given: its unwrapped step is listened to."""
    given = []
    env = made._env.env.unwrapped
    step = env.step
    env.step = lambda action: (given.append(int(action)), step(action))[1]
    for answer in answers:
        made.step(said(answer))
    return given


def test_what_can_be_read_is_done():
    made = slot("penalize")
    assert actions(made, "go on", " STOP ") == [1, 0]
    assert made.parsed


def test_penalize_waits_and_pays():
    """The environment is not stepped; the same observation is asked again."""
    made = slot("penalize", penalty=-0.5)
    before = made.context
    assert made.step(said("what?")) == (-0.5, False, False)
    assert not made.parsed
    assert made.context is before
    assert made.episode_return == -0.5
    assert made.step(said("go on"))[0] == 1.0
    assert made.parsed


def test_penalize_loses_patience():
    """Otherwise a model that never says an action would play one episode for ever. An answer that is read starts anew."""
    made = slot("penalize", patience=2)
    ends = [made.step(said(answer))[1:] for answer in ("?", "go on", "?", "?")]
    assert ends == [(False, False), (False, False), (False, False), (True, False)]
    assert not made.live


def test_where_nothing_can_be_read_values_have_a_fixed_point():
    """Had patience truncated the episode, its last turn would bootstrap on the value of the very observation that it began
    with: each rollout would add the same penalties again, to values without end."""
    made = slot("penalize", patience=3, penalty=-1.0)
    value = 0.0
    for _ in range(4):  # rollouts, after each of which the value is what was returned
        made.reset(3)
        rewards, ends = [], (False, False)
        while made.live:
            reward, *ends = made.step(said("?"))
            rewards.append(reward)
        value = sum(rewards) + (value if ends[1] else 0.0)
        assert value == -3.0  # three penalties, however often
        assert made.episode_penalty == made.episode_return == -3.0


def test_end_episode_terminates():
    made = slot("end_episode", penalty=-2.0)
    assert made.step(said("")) == (-2.0, True, False)
    assert not made.live


def test_default_and_repeat():
    assert actions(slot("default", default_action=1), "?", "stop", "?") == [1, 0, 1]
    assert actions(slot("repeat"), "go on", "?", "stop", "?", "?") == [1, 1, 0, 0, 0]


def test_random_is_any_action_and_the_same_for_the_same_seed():
    """An episode is brought back by its reset seed and its answers."""
    runs = [actions(slot("random", seed=seed), *["?"] * 40) for seed in (3, 3, 4)]
    assert set(runs[0]) == {0, 1}
    assert runs[0] == runs[1] != runs[2]


def test_an_episode_with_fallbacks_is_brought_back():
    """As a resumed run does, unread answers included."""
    made = slot("random")
    for answer in ("?", "go on", "", "?"):
        made.step(said(answer))
    state = made.state_dict()
    other = slot("random", seed=9)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.context.observation_text == made.context.observation_text


def test_an_unknown_fallback_is_refused_when_the_class_is_made():
    with pytest.raises(TypeError, match="fallback is 'shrug': choose one of penalize"):
        slot("shrug")
