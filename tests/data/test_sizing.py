"""The size of a rollout where none is given, by hand on a made-up random play."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.learners import RecordingLearner
from helpers.scripted import TextSpeaker
from lgym.agents.experts import Uniform
from lgym.data import BestEpisodeBuffer, DAgger, ExplorationBonus
from lgym.data.data_config import DataConfig
from lgym.data.measuring import DEFAULTS
from lgym.data.random_play import RandomPlay
from lgym.data.sizing import (
    Choice,
    default_envs,
    environments,
    number_of_minibatches,
    prompts_in,
    size_choices,
    tokens_per_turn,
    turns_and_passes,
)

CPU = torch.device("cpu")


def play(distinct_share: float, length: float = 8.0, turns: int = 4096) -> RandomPlay:
    """Random turns in episodes of this length, of which each such share met a new prompt."""
    distinct = [max(1, round(distinct_share * turn)) for turn in range(1, turns + 1)]
    return RandomPlay(distinct=distinct, lengths=[length] * 4)


@pytest.mark.parametrize(
    ("distinct_share", "length", "passes", "expected"),
    [
        # every prompt is new: 4,096 turns are played anyway, and half of the time, 500 prompts, makes 2 passes
        (1.0, 500.0, None, (4096, 2, 250)),
        # one prompt: as much play as there may be; its 0.4 leave 999.6 for the most passes
        (0.0, 8.0, None, (32768, 8, 125)),
        # 8,192 turns have 820 prompts, which cost 328 of 500; twice as many would cost 655. 672 for 2 passes
        (0.1, 20.0, None, (8192, 2, 336)),
        (0.1, 20.0, 1, (8192, 1, 672)),
        # 32 episodes of 20 turns are 640 turns, and so 1,024: 410 of 500, and 590 for 2 passes
        (1.0, 20.0, None, (1024, 2, 296)),
        # 32 episodes of 8 turns are below the fewest turns
        (1.0, 8.0, None, (1024, 2, 296)),
    ],
)
def test_turns_and_passes_by_hand(distinct_share, length, passes, expected):
    """Catches a rollout that takes another time than its share, or has too few episodes to compare; with time
    for 1,000 prompts that are learned from once."""
    assert turns_and_passes(play(distinct_share), length, 1000, passes) == expected


def test_a_slow_environment_plays_less():
    """Catches rollouts of minutes, of 37 ms a turn, in place of 20 seconds, which are 540 turns. A turn of 4
    ms leaves 5,000, and so 4,096; one of 0.5 ms, three times that of any built-in game, all of them."""
    for seconds, expected in ((0.037, 512), (0.004, 4096), (0.0005, 32768)):
        random = replace(play(0.0, turns=1000), seconds=1000 * seconds)
        assert chosen(random)["turns_per_rollout"] == expected


def test_a_pass_always_has_some_prompts():
    """Catches a pass over next to nothing where there is no time: the fewest turns, and 64 prompts."""
    assert turns_and_passes(play(1.0), 8.0, 10, None) == (512, 2, 64)


@pytest.mark.parametrize(
    ("turns", "length", "expected"),
    [
        (4096, 500.0, 8),  # 4 would play two episodes each, but of 1,024 turns, so 4,096 / 512
        (32768, 8.0, 256),  # 2,048 would, and the most are 256
        (32768, 12_000.0, 64),  # 32,768 / 512
        (1024, 20.0, 32),  # 1,024 / 40 is 26, and so 2^5
        (512, 500.0, 8),  # the fewest
    ],
)
def test_each_environment_plays_two_episodes(turns, length, expected):
    """Catches 64 environments with 128 turns each where episodes have 500: none ended, and no return was
    shown."""
    assert environments(turns, length) == expected


@pytest.mark.parametrize(
    ("prompts", "passes", "expected"), [(1, 4, 1), (15, 4, 4), (500, 4, 6), (500, 2, 12), (10**6, 30, 1)]
)
def test_a_rollout_is_learned_in_24_steps(prompts, passes, expected):
    """Catches minibatches of one prompt, whose gradients are noise, and more steps where more is met: with 64
    in place of 24, CartPole stayed at 350."""
    assert number_of_minibatches(prompts, passes) == expected


@pytest.mark.parametrize(
    ("distinct", "passes", "steps"), [(4, 8, 8), (11, 8, 24), (16, 6, 24), (24, 4, 24), (80, 4, 24)]
)
def test_few_prompts_get_more_passes(distinct, passes, steps):
    """Catches half of the steps on a lake of 11 fields: after 40 rollouts it was at 0.49 of 0.74."""
    random = RandomPlay(distinct=[distinct] * 4096, lengths=[8])
    assert turns_and_passes(random, 8.0, 1000, None)[1] == passes
    assert number_of_minibatches(distinct, passes) * passes == steps


def test_tokens_by_hand():
    """Catches candidates that are counted as nothing: 1 + 2 + (40 + 2 + 3) / 4 and 1 + 0 + 8 / 4 tokens."""
    assert tokens_per_turn([("a" * 40, ("ab", "abc")), ("a" * 8, ())]) == pytest.approx((14.25 + 3) / 2)


def test_the_time_of_a_prompt(monkeypatch):
    """Catches a rate that ignores the cores of a CPU, the device, or the tokens that a policy writes."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    random = RandomPlay(questions={("a" * 8, ()): None})  # 3 tokens
    silent, speaking = RecordingLearner(), RecordingLearner(TextSpeaker())  # which writes 16, at 3 each
    assert prompts_in(60, random, silent, CPU) == pytest.approx(60 * 1000 * 3 / 3)
    assert prompts_in(60, random, speaking, CPU) == pytest.approx(60 * 330 * 3 / 51)
    for device, rate in (("cuda", 10_000), ("mps", 9_000), ("xpu", 10_000)):
        assert prompts_in(6, random, silent, torch.device(device)) == pytest.approx(6 * rate / 3)


def chosen(
    random: RandomPlay, learner=None, open_names=frozenset(DEFAULTS), most_prompts=1000, **settings
) -> dict[str, object]:
    config = DataConfig(env="Echo-v0", **settings)
    choices = size_choices(config, set(open_names), random, learner or RecordingLearner(), most_prompts)
    return {choice.name: choice.value for choice in choices}


def test_all_choices_of_one_play():
    """Catches as many steps in each pass as there are to be in all: 24 in 2 passes are 12 minibatches in
    each; 8,192 turns in episodes of 20 are two in each of 256 environments."""
    assert chosen(play(0.1, 20.0)) == {
        "num_envs": 256,
        "turns_per_rollout": 8192,
        "update_epochs": 2,
        "prompts_per_pass": 336,
        "num_minibatches": 12,
    }


def test_what_is_given_is_not_chosen_and_counts():
    """Catches a choice that overrides a setting, or does not fit it: turns are a multiple of num_envs, and 4
    passes of 168 prompts are as many as 2 of 336."""
    given = {"num_envs": 24, "update_epochs": 4}
    assert chosen(play(0.1, 20.0), open_names=set(DEFAULTS) - set(given), **given) == {
        "turns_per_rollout": 8184,  # 341 * 24
        "prompts_per_pass": 168,  # (1,000 - 0.4 * 820) / 4
        "num_minibatches": 6,
    }


def test_what_is_replayed_needs_short_rollouts_and_no_passes():
    """Catches a buffer that is learned from once in 8,192 turns."""
    assert chosen(play(0.1, 20.0), RecordingLearner(uses_replay=True)) == {
        "num_envs": 32,
        "turns_per_rollout": 1024,
    }


def test_a_single_pass_is_one():
    """Catches several passes of an algorithm that nothing holds near the policy that played."""
    found = chosen(play(0.1, 20.0), RecordingLearner(single_pass=True))
    assert (found["update_epochs"], found["prompts_per_pass"]) == (1, 672)


@pytest.mark.parametrize(
    ("learner", "settings"),
    [
        (RecordingLearner(needs_whole_episodes=True), {}),
        (RecordingLearner(needs_whole_episodes=True), {"group_size": 5}),
        (RecordingLearner(), {"self_imitation": BestEpisodeBuffer(top_fraction=0.5)}),
        (RecordingLearner(), {"dagger": DAgger(Uniform(2))}),
    ],
    ids=["whole", "groups", "self-imitation", "dagger"],
)
def test_whole_episodes_where_they_are_needed(learner, settings):
    """Catches a rollout that ends within an episode, or a group: 8,192 turns are 409.6 episodes of 20."""
    found = chosen(play(0.1, 20.0), learner, **settings)
    assert "turns_per_rollout" not in found
    assert found["episodes_per_rollout"] == (410 if settings.get("group_size") is None else 82 * 5)


def test_responses_in_text_are_all_new():
    """Catches sizes of a text-generating policy by its prompts: each response is learned from for itself, so
    one prompt is as long to learn from as any number."""
    speaking = RecordingLearner(TextSpeaker())
    assert chosen(play(0.0, 20.0), speaking) == chosen(play(1.0, 20.0), speaking)
    turns = chosen(play(0.0, 20.0), speaking)["turns_per_rollout"]
    assert (
        turns == chosen(play(1.0, 20.0))["turns_per_rollout"] < chosen(play(0.0, 20.0))["turns_per_rollout"]
    )


def test_all_that_was_written_is_learned_from():
    """Catches passes over half of the responses, each of which took longer to write than to learn from: one
    pass over all in 24 minibatches, or more passes where there is time for them."""
    found = chosen(play(1.0, 20.0), RecordingLearner(TextSpeaker()))
    assert found["update_epochs"] == 1
    assert found["num_minibatches"] == 24
    assert "prompts_per_pass" not in found
    quick = chosen(play(1.0, 2.0), RecordingLearner(TextSpeaker()), most_prompts=1_000_000)
    assert (quick["update_epochs"], quick["num_minibatches"]) == (4, 6)


def test_a_play_without_an_end_is_as_long_as_it_was():
    """Catches a division by no episodes: where none has ended, the longest counts."""
    random = RandomPlay(distinct=[1] * 4096, longest=[("a", "b")] * 400)
    assert chosen(random)["num_envs"] == environments(32768, 400.0) == 64


def test_random_characters_do_not_tell_how_long_a_game_is():
    """Catches 256 environments of two turns each for a game that ends at the first answer without sense."""
    speaking = RecordingLearner(TextSpeaker())
    assert chosen(play(1.0, 1.0), speaking)["num_envs"] == 256
    found = chosen(replace(play(1.0, 1.0), tries=False), speaking)
    assert found["num_envs"] == environments(found["turns_per_rollout"], 8.0) < 256


def test_lines_are_those_of_a_yaml():
    """Catches reasons that hide the value, or an object's address in place of its class."""
    assert Choice("num_envs", 8, "why").line == "data.num_envs: 8  # why"
    assert Choice("exploration_bonus", ExplorationBonus(), "why").line == (
        "data.exploration_bonus: ExplorationBonus  # why"
    )


@pytest.mark.parametrize(("turns", "expected"), [(None, 16), (64, 16), (20, 10), (7, 7)])
def test_environments_share_the_turns_of_a_rollout(turns, expected):
    """Catches turns that are no multiple of the environments."""
    assert default_envs(turns) == expected
