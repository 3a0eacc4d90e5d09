"""Rollouts: what is recorded must be what happened, whoever played it and wherever it was cut."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from helpers import echo
from helpers.collectors import choices_of, make_collector, plain_values
from helpers.scripted import FirstCandidatePolicy
from lgym.data.prompts import prompt_builder


def collector(env_id="Counting-v0", agent=None, num_envs=2, limit=3, kept=0, **env_kwargs):
    envs = [gymnasium.make(env_id, max_episode_steps=limit, **env_kwargs) for _ in range(num_envs)]
    return make_collector(envs, agent or echo.CountingAgent(), kept_transcripts=kept)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_whole_episodes_are_played_and_no_more():
    """Five episodes of three turns on two environments: 3 + 2, so the second environment idles at the end."""
    rollout = collector().play(FirstCandidatePolicy(), rng(), episodes=5)
    assert rollout.mask.sum(dim=1).tolist() == [9, 6]
    assert rollout.episode_lengths.tolist() == [3.0] * 5
    assert rollout.episode_returns.tolist() == [6.0] * 5  # 1 + 2 + 3
    assert rollout.rewards[0].tolist() == [1, 2, 3] * 3


def test_a_truncated_turn_bootstraps_from_the_true_last_observation():
    """With autoreset's ghost step the value would be that of the next episode's first observation."""
    policy = FirstCandidatePolicy()
    rollout = collector(num_envs=1).play(policy, rng(), episodes=2)
    assert rollout.truncated[0].tolist() == [False, False, True] * 2
    assert not rollout.terminated[0].any()
    for turn in (2, 5):
        text = rollout.prompts[int(rollout.prompt_index[0, turn])].observation_text
        assert text.endswith(
            " 2"
        )  # acted on turn 2, which led to an observation "<n> 3" of 3 or 4 characters
        assert float(rollout.next_values[0, turn]) in (3.0, 4.0)
    last = [text for text in policy.valued if text.endswith(" 3")]
    assert last, "nobody asked for the value of an observation that was truncated away"


def test_a_terminated_turn_has_no_next_value():
    """Bootstrapping at a termination would pay for a future that does not exist."""
    rollout = collector("Echo-v0", echo.EchoAgent(), limit=10).play(FirstCandidatePolicy(), rng(), episodes=4)
    assert rollout.terminated[rollout.mask].all()
    assert rollout.next_values[rollout.mask].tolist() == [0.0] * 4


def test_each_distinct_prompt_is_new_once():
    """400 hands of Echo have 3 distinct prompts; computing more than these is what makes rivals slow."""
    policy = FirstCandidatePolicy()
    rollout = collector("Echo-v0", echo.EchoAgent(), num_envs=8, limit=10).play(policy, rng(), episodes=400)
    assert sorted(policy.new_prompts) == sorted(echo.WORDS)
    assert len(rollout.prompts) == 3
    assert len(rollout.responses) < 400


def test_prompts_known_ahead_are_prefetched_before_the_first_turn():
    class Prefetching(FirstCandidatePolicy):
        def prefetch(self, prompts):
            self.new_prompts += prompts

    policy, envs = Prefetching(), [gymnasium.make("Counting-v0", max_episode_steps=3)]
    make_collector(envs, echo.CountingAgent(), prefetched=lambda: ["ahead"]).play(policy, rng(), episodes=2)
    assert policy.new_prompts[0] == "ahead"
    assert policy.new_prompts.count("ahead") == 1


@pytest.mark.parametrize(("history", "keeps"), [(0, False), (1, True), ("full", True)])
def test_keys_and_values_are_wanted_where_prompts_show_history(history, keeps):
    class Noting(FirstCandidatePolicy):
        def act(self, prompts, rng, *, keep_kv_cache=True, bootstrap=()):
            assert keep_kv_cache == keeps
            return super().act(prompts, rng)

    envs = [gymnasium.make("Counting-v0", max_episode_steps=3)]
    make_collector(envs, echo.CountingAgent(), prompts={"history": history}).play(Noting(), rng(), episodes=1)


def test_greedy_takes_the_likeliest():
    """Evaluation without a generator must not sample."""
    rollout = collector().play(FirstCandidatePolicy(), None, episodes=3)
    assert (choices_of(rollout)[rollout.mask] == 0).all()


def test_the_same_seed_plays_the_same():
    """Reproducibility of everything random on the data side."""
    a = collector().play(FirstCandidatePolicy(), rng(3), episodes=6)
    b = collector().play(FirstCandidatePolicy(), rng(3), episodes=6)
    c = collector().play(FirstCandidatePolicy(), rng(4), episodes=6)
    assert plain_values(a) == plain_values(b)
    assert not torch.equal(choices_of(a), choices_of(c))


def test_a_rollout_of_turns_goes_on_in_the_next():
    """Cutting at the rollout's end is a truncation with bootstrap, not an end of the episode."""
    player = collector(num_envs=2, limit=None)
    first = player.play(FirstCandidatePolicy(), rng(), turns=8)
    assert first.mask.shape == (2, 4)
    assert first.truncated.tolist() == [[False, False, False, True]] * 2
    assert len(first.episode_returns) == 0
    second = player.play(FirstCandidatePolicy(), rng(), turns=8)
    assert second.rewards[0].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_a_restored_collector_stands_where_the_old_one_stood():
    """Environments in mid-episode come back by seed and answers."""
    generator = rng(1)
    old = collector(num_envs=2, limit=7)
    old.play(FirstCandidatePolicy(), generator, turns=10)
    state, random_state = old.state_dict(), generator.bit_generator.state
    expected = old.play(FirstCandidatePolicy(), generator, turns=10)
    new, again = collector(num_envs=2, limit=7), rng(99)
    again.bit_generator.state = random_state
    new.load_state_dict(state)
    restored = new.play(FirstCandidatePolicy(), again, turns=10)
    assert plain_values(restored) == plain_values(expected)


def test_an_environment_that_ignores_its_seed_cannot_be_restored():
    """Silently going on from another state would break exact resume."""
    player = collector(num_envs=1, limit=None)
    player.play(FirstCandidatePolicy(), rng(), turns=4)
    state = player.state_dict()
    state["runners"][0]["observation_text"] = "somewhere else"
    with pytest.raises(ValueError, match=r"Counting-v0 does not come back.*episodes_per_rollout"):
        collector(num_envs=1, limit=None).load_state_dict(state)


def test_another_number_of_environments_in_mid_episode_is_refused():
    """Half of the episodes would be lost."""
    player = collector(num_envs=2, limit=None)
    player.play(FirstCandidatePolicy(), rng(), turns=4)
    with pytest.raises(ValueError, match=r"holds 2 environments.*num_envs is 3"):
        collector(num_envs=3, limit=None).load_state_dict(player.state_dict())


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 2), (2, 3), (4, 4)])
def test_groups_of_another_size_go_on_with_the_next_seed(before, after):
    """Catches seeds that are played twice, or never, and a group of two seeds."""

    player, found = None, []
    for group_size in (before, after, before):
        envs = [gymnasium.make("Counting-v0", max_episode_steps=3) for _ in range(2)]
        resumed = make_collector(envs, echo.CountingAgent(), group_size=group_size)
        if player is not None:
            resumed.load_state_dict(player.state_dict())
        player = resumed
        rollout = player.play(FirstCandidatePolicy(), rng(), episodes=2 * group_size)
        numbers, seeds = (x[rollout.mask].tolist() for x in (rollout.episode_ids, rollout.reset_seeds))
        found.append([seed for _, seed in sorted(set(zip(numbers, seeds, strict=True)))])
    first = found[0][0]
    assert found == [
        [first] * before + [first + 1] * before,
        [first + 2] * after + [first + 3] * after,
        [first + 4] * before + [first + 5] * before,
    ]


def test_transcripts_hold_whole_episodes():
    """The first episodes of a rollout, with the probabilities that were sampled from."""
    player = collector(num_envs=2, kept=3)
    player.play(FirstCandidatePolicy(), rng(), episodes=5)
    assert len(player.transcripts) == 3
    assert [len(episode.turns) for episode in player.transcripts] == [3, 3, 3]
    assert {episode.seed for episode in player.transcripts} == {100, 101, 102}
    assert all(episode.truncated and episode.episode_return == 6.0 for episode in player.transcripts)
    assert player.transcripts[0].turns[0].probabilities == {
        "stop": pytest.approx(0.75),
        "go on": pytest.approx(0.25),
    }


def test_an_episode_longer_than_a_rollout_has_its_whole_transcript():
    """Begun in one rollout and ended in the next, of a run that was resumed between too; but not where it
    began before its turns were kept."""
    player = collector(limit=7, kept=1)
    player.play(FirstCandidatePolicy(), rng(), turns=8)
    assert player.transcripts == []
    resumed = collector(limit=7, kept=2)
    resumed.load_state_dict(player.state_dict())
    for each in (player, resumed):
        each.play(FirstCandidatePolicy(), rng(), turns=8)
    (episode,) = player.transcripts
    assert [turn.reward for turn in episode.turns] == [1, 2, 3, 4, 5, 6, 7]
    assert episode.truncated
    assert resumed.transcripts == [episode]


def test_a_cache_that_is_cleared_in_mid_rollout_changes_nothing(monkeypatch):
    """60 tokens hold one prompt or two. A prompt that was forgotten and made anew must not become another,
    with a row, a sample and a gradient of its own."""

    def played(tokens):
        monkeypatch.setattr(prompt_builder, "CACHED_TOKENS", tokens)
        policy = FirstCandidatePolicy()
        player = collector(env_id="Echo-v0", agent=echo.EchoAgent(), turns=3, num_envs=3, limit=None)
        return policy.new_prompts, player.play(policy, rng(), episodes=12)

    (new_prompts, rollout), (new_prompts_again, forgetful) = played(10**9), played(60)
    assert len(new_prompts) == 3
    assert new_prompts_again == new_prompts
    assert plain_values(forgetful) == plain_values(rollout)


def test_progress_is_reported():
    """A bar that never moves looks like a hang."""
    calls = []
    collector().play(
        FirstCandidatePolicy(),
        rng(),
        episodes=4,
        progress=lambda so_far: calls.append((so_far.done, so_far.total)),
    )
    assert calls[-1] == (4, 4)
    assert len(calls) > 1


def test_turns_and_episodes_are_counted_over_the_run():
    """A curve over environment steps is drawn over `total_turns`: 6 of 3 turns, and 12 of them after the
    second."""
    player = collector()
    first, second = (player.play(FirstCandidatePolicy(), rng(), episodes=6) for _ in range(2))
    assert (first.total_turns, first.total_episodes) == (18, 6)
    assert (second.total_turns, second.total_episodes) == (36, 12)
    restored = collector()
    restored.load_state_dict(player.state_dict())
    assert restored.play(FirstCandidatePolicy(), rng(), episodes=1).total_turns == 39
