"""reasoning-gym's tasks as environments of one turn."""

from __future__ import annotations

import pickle
import sys

import pytest
from gymnasium.utils.env_checker import check_env

from lgym.agents.experts import Walkthrough
from lgym.envs import make_env
from lgym.envs.reasoning import ReasoningGymEnv
from lgym.types import ConfigError


@pytest.fixture
def env():
    pytest.importorskip("reasoning_gym")
    return ReasoningGymEnv("leg_counting", items=5, config={"max_animals": 3})


def test_the_right_answer_is_a_success_and_another_is_not(env):
    question, info = env.reset(seed=0)
    assert "legs" in question
    assert env.step("no number")[1:] == (0.0, True, False, info)
    env.reset(seed=0)
    _, reward, terminated, _, after = env.step(f" {Walkthrough().act(question, info)} ")
    assert (reward, terminated, after["success"]) == (1.0, True, True)


def test_an_answer_of_another_form_is_wrong_and_ends_no_run():
    """Catches a task's own score that raises for words where it counts on numbers."""
    pytest.importorskip("reasoning_gym")
    env = ReasoningGymEnv("prime_factorization", items=3)
    env.reset(seed=0)
    assert env.step("The factors are 2 and 3")[1] == 0.0


def test_a_task_that_tells_no_answer_has_none_to_demonstrate():
    """Catches a hundred demonstrations of the word None."""
    pytest.importorskip("reasoning_gym")
    observation, info = ReasoningGymEnv("rush_hour", items=3).reset(seed=0)
    assert info == {"success": False}
    with pytest.raises(ConfigError, match="the info has none"):
        Walkthrough().act(observation, info)


def test_questions_are_numbered(env):
    texts = [env.reset(seed=seed)[0] for seed in range(6)]
    assert len(set(texts)) == 5
    assert texts[5] == texts[0]
    others = ReasoningGymEnv("leg_counting", first_item=5, items=5, config={"max_animals": 3})
    assert not {others.reset(seed=seed)[0] for seed in range(5)} & set(texts)


def test_splits_share_no_question():
    """Catches ranges of numbers that are told apart and ask the same: a sum of two digits comes again."""
    pytest.importorskip("reasoning_gym")
    few = {"min_terms": 2, "max_terms": 2, "max_digits": 1}

    def questions(**settings):
        env = ReasoningGymEnv("chain_sum", items=300, config=few, **settings)
        return [env.reset(seed=seed)[0] for seed in range(300)]

    train, test = questions(split="train"), questions(split="test")
    assert not set(train) & set(test)
    assert len(set(train)) > 5 * len(set(test)) > 20
    assert questions(split="test") == test
    assert set(questions()) & set(questions(first_item=300))


def test_a_split_without_a_question_is_refused():
    """Of a task that asks for the bits of 5 alone."""
    pytest.importorskip("reasoning_gym")
    five = {"min_n": 5, "max_n": 5}
    assert "number 5" in ReasoningGymEnv("count_bits", config=five, split="train").reset(seed=0)[0]
    with pytest.raises(ConfigError, match="none of the split 'test'. Change config"):
        ReasoningGymEnv("count_bits", config=five, split="test").reset(seed=0)


def test_it_is_a_gymnasium_environment_and_can_be_pickled(env):
    check_env(env, skip_render_check=True)
    assert pickle.loads(pickle.dumps(env)).reset(seed=1) == env.reset(seed=1)
    assert make_env("lgym/ReasoningGym-v0", {"task": "gcd"}).reset(seed=0)[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "leg_count"}, "'leg_count'.*Its tasks are .*leg_counting"),
        (
            {"task": "leg_counting", "config": {"legs": 4}},
            "unexpected keyword argument 'legs'. Change config",
        ),
        ({"task": "leg_counting", "items": 0}, "items is 0"),
        ({"task": "leg_counting", "split": "val"}, "split is 'val'; choose train or test"),
    ],
)
def test_settings_that_ask_nothing_are_refused(settings, message):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=message):
        ReasoningGymEnv(**settings)


def test_without_the_package_the_way_out_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r'pip install "lgym\[reasoning\]"'):
        make_env("lgym/ReasoningGym-v0", {"task": "gcd"})
