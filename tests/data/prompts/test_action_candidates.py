"""Mistaken agents and prompts that are too long: one clear error, early."""

from __future__ import annotations

import pytest

from helpers import echo, tiny
from helpers.learners import RecordingLearner, attach
from helpers.scripted import TextSpeaker
from lgym.data import RolloutDataModule
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.random_play import ask
from lgym.types import ParsedAction


def agent_with(**members):
    return type("SomeAgent", (echo.EchoAgent,), members)()


def module(agent, **changes):
    return RolloutDataModule(env="Echo-v0", agent=agent, **{"episodes_per_rollout": 8, **changes})


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"candidates": lambda self, o, i: []}, r"SomeAgent offers no candidates"),
        ({"candidates": lambda self, o, i: ["red", "green", "red"]}, r"candidates \['red'\] more than once"),
        ({"candidates": lambda self, o, i: "red"}, r"must return a list"),
        ({"extract_action": lambda self, text: ParsedAction.failure("no idea")}, r"'red'.*no idea"),
        (
            {"extract_action": lambda self, text: ParsedAction(7)},
            r"as the action 7.*not in Echo-v0's action space",
        ),
        ({"format_observation": lambda self, o: 3}, r"format_observation returned 3"),
    ],
)
def test_a_mistaken_agent_is_told_before_a_model_is_loaded(members, message):
    """These would otherwise surface minutes later, inside a rollout."""
    with pytest.raises(ValueError, match=message):
        module(agent_with(**members))


def test_candidates_are_asked_for_once_an_observation():
    """They are the user's own code, which may be slow, or count."""
    asked = []
    agent = agent_with(candidates=lambda self, o, i: asked.append(o) or echo.WORDS)
    module(agent)
    assert len(asked) == 1
    assert ask(agent, 2, {}) == ("blue", echo.WORDS)
    assert asked[1:] == [2]


def test_an_agent_without_candidates_needs_a_text_generating_policy():
    """Told when the run is set up, which is before a model is loaded."""
    data = module(agent_with(candidates=lambda self, o, i: None))
    with pytest.raises(ValueError, match=r"SomeAgent offers no candidates.*actions"):
        attach(data, RecordingLearner()).setup("fit")
    attach(data, RecordingLearner(TextSpeaker())).setup("fit")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"extract_action": lambda self, text: 3}, r"extract_action returned 3 for an empty response"),
        (
            {"extract_action": lambda self, text: "red"},
            r"returned 'red'.*not in the environment's action space",
        ),
        ({"parse": lambda self, text: 1}, r"parse returned 1 for an empty response"),
        ({"fallback": "default"}, r"default_action None is not in the environment's action space"),
        ({"fallback": "default", "default_action": 3}, r"default_action 3 is not in"),
    ],
)
def test_mistakes_of_reading_free_text_are_found_when_the_run_is_set_up(members, message):
    """Otherwise they surface at the first reply that cannot be read."""
    data = module(agent_with(candidates=lambda self, o, i: None, **members))
    with pytest.raises(ValueError, match=message):
        attach(data, RecordingLearner(TextSpeaker())).setup("fit")


@pytest.mark.parametrize("action", [None, 1, ParsedAction(1), ParsedAction.failure("none")])
def test_free_text_may_be_read_as_an_action_or_none(action):
    data = module(agent_with(candidates=lambda self, o, i: None, extract_action=lambda self, text: action))
    attach(data, RecordingLearner(TextSpeaker())).setup("fit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 3}, r"group_size is 3 and data.episodes_per_rollout is 8.*multiple"),
        ({"group_size": 2, "episodes_per_rollout": None, "turns_per_rollout": 64}, "whole episodes"),
        ({"turns_per_rollout": 64}, "give one of the two"),
        (
            {"episodes_per_rollout": None, "turns_per_rollout": 100, "num_envs": 16},
            r"turns_per_rollout is 100.*multiple.*such as 96",
        ),
        ({"num_envs": 0}, "data.num_envs is 0"),
        ({"minibatch_size": -1}, "data.minibatch_size is -1"),
        ({"target_rollout_seconds": 0.0}, "data.target_rollout_seconds is 0.0; it must be above 0"),
        ({"minibatch_size": 8, "num_minibatches": 4}, "num_minibatches is 4 and data.minibatch_size is 8"),
        ({"episodes_per_rollout": 0}, "data.episodes_per_rollout is 0"),
    ],
)
def test_bad_amounts_are_refused(changes, message):
    """Naming the option as the YAML does."""
    with pytest.raises(ValueError, match=message):
        module(echo.EchoAgent(), **changes)


def test_an_unknown_environment_names_those_like_it():
    """Gymnasium's own error has no suggestion for a third-party id."""
    with pytest.raises(ValueError, match="Blackjack-v1"):
        RolloutDataModule(env="Blackjak-v1", agent=echo.EchoAgent(), episodes_per_rollout=8)


def builder(template=tiny.TEMPLATE, context_length=2048, prompt="Be brief."):
    return PromptBuilder(tiny.tokenizer(template), prompt, context_length)


def test_the_prompt_is_the_template_token_for_token():
    """Encoding the rendered text must add nothing (LlamaGym doubled the BOS)."""
    made = builder().prompt("red", ["a", "b"])
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nred<|im_end|>\n<|im_start|>assistant\n"
    assert tiny.tokenizer().decode(made.token_ids) == text
    assert made.token_ids == tuple(tiny.tokenizer().encode(text))
    assert [tiny.tokenizer().decode(ids) for ids in made.candidate_ids] == ["a", "b"]


def test_equal_questions_are_the_same_object():
    """Rendering and encoding the same prompt again would be work for nothing."""
    made = builder()
    assert made.prompt("red", ["a", "b"]) is made.prompt("red", ["a", "b"])
    assert made.prompt("red", ["a", "b"]) is not made.prompt("red", ["b", "a"])


def test_the_cache_is_bounded_by_its_tokens(monkeypatch):
    """However many prompts: a thousand long ones could fill the memory. Here two of them are too many."""
    size = len(builder().prompt("x" * 50, ["a"]).token_ids) + 1  # with the candidate's token
    monkeypatch.setattr("lgym.data.prompts.prompt_builder.CACHED_TOKENS", 2 * size - 1)
    made = builder()
    first = made.prompt("x" * 50, ["a"])
    assert made.prompt("x" * 50, ["a"]) is first
    made.prompt("y" * 50, ["a"])
    assert made.prompt("x" * 50, ["a"]) is not first
    assert len(made._prompts) == 1
    monkeypatch.setattr("lgym.data.prompts.prompt_builder.CACHED_TOKENS", 2 * size)
    made.prompt("y" * 50, ["a"])
    assert len(made._prompts) == 2


def test_a_template_that_refuses_a_system_role_gets_it_from_the_user():
    """Gemma's template raises on a system message."""
    template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        + tiny.TEMPLATE
    )
    text = tiny.tokenizer().decode(builder(template).prompt("red", ["a"]).token_ids)
    assert text == "<|im_start|>user\nBe brief.\n\nred<|im_end|>\n<|im_start|>assistant\n"


def test_a_prompt_longer_than_the_context_says_by_how_much():
    """Not even an observation of which nothing is left would fit."""
    made = builder(context_length=200)
    assert made.prompt("x" * 50, ["a"])
    with pytest.raises(ValueError, match=r"has \d+ tokens, more than the 200 that.*system prompt"):
        builder(context_length=200, prompt="Be brief." * 20).prompt("x" * 300, ["a"])
    with pytest.raises(ValueError, match=r"has \d+ tokens, more than the 200 that.*candidates"):
        made.prompt("x", ["a" * 200])


def test_candidates_that_tokenize_alike_are_refused():
    """The model could never tell them apart."""
    made = builder()
    made.tokenizer._tokenizer.normalizer = __import__("tokenizers").normalizers.Lowercase()
    with pytest.raises(ValueError, match="'Go' and 'go' are the same tokens"):
        made.prompt("red", ["Go", "go"])


def test_a_candidate_without_text_is_refused():
    """It has no likelihood."""
    with pytest.raises(ValueError, match="'' has no tokens"):
        builder().prompt("red", ["", "go"])
