"""Playing: what is recorded must be what happened, whoever played it and wherever it was cut."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from lgym.data.collector import Collector
from lgym.data.slot import Slot

from helpers import echo, tiny
from lgym.data.prompts import prompt_builder
from lgym.data.prompts.prompt_builder import PromptBuilder


class ScriptedPolicy:
    """Likes the first candidate with probability 0.75; a context's value is the length of its observation's text."""

    speaks = False
    has_critic = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def evaluate(self, contexts, *, going_on=()):
        self.asked += [context.observation_text for context in contexts]
        width = max(len(context.candidates) for context in contexts)
        logprobs = torch.full((len(contexts), width), -torch.inf)
        for i, context in enumerate(contexts):
            rest = 0.25 / (len(context.candidates) - 1)
            logprobs[i, : len(context.candidates)] = torch.tensor([0.75] + [rest] * (len(context.candidates) - 1)).log()
        return logprobs, torch.tensor([float(len(context.observation_text)) for context in contexts])


def collector(env_id="Counting-v0", agent=None, num_envs=2, limit=3, kept=0, first_seed=100, **env_kwargs):
    agent = agent or echo.CountingAgent()
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    envs = [gymnasium.make(env_id, max_episode_steps=limit, **env_kwargs) for _ in range(num_envs)]
    return Collector([Slot(env, agent, builder) for env in envs], first_seed=first_seed, kept_transcripts=kept)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_whole_episodes_are_played_and_no_more():
    """Five episodes of three turns on two environments: 3 + 2, so the second environment idles at the end."""
    rollout = collector().play(ScriptedPolicy(), rng(), episodes=5)
    assert rollout.mask.sum(dim=1).tolist() == [9, 6]
    assert rollout.episode_lengths.tolist() == [3.0] * 5
    assert rollout.episode_returns.tolist() == [6.0] * 5  # 1 + 2 + 3
    assert rollout.rewards[0].tolist() == [1, 2, 3] * 3


class DullEnv(gymnasium.Env):
    """One turn. Pays the action in episodes from even seeds, and nothing in the others."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._pays = seed % 2 == 0
        return 0, {}

    def step(self, action):
        return 0, float(self._pays * action), True, False, {}


if "Dull-v0" not in gymnasium.registry:
    gymnasium.register("Dull-v0", DullEnv)


@pytest.mark.parametrize(("refill", "second"), [(0, [102, 103]), (1, [103, 104, 105]), (5, [103, 104, 105, 106])])
def test_groups_without_signal_are_refilled(refill, second):
    """Groups of 8 from seeds 100 and 101; that of 101 is dull, and 102 is played for it. The rollout behind that has 103 and
    104, then 105 for 103, and where it may, 106 for 105."""
    agent = echo.EchoAgent()
    builder = PromptBuilder(tiny.tokenizer(), agent.system_prompt, 2048)
    slots = [Slot(gymnasium.make("Dull-v0"), agent, builder) for _ in range(16)]
    playing = Collector(slots, first_seed=100, group_size=8, dynamic_sampling_groups=refill)
    for expected in ([100, 101, 102] if refill else [100, 101]), second:
        rollout = playing.play(ScriptedPolicy(), rng(), episodes=16)
        seeds, counts = rollout.reset_seeds[rollout.mask].unique(return_counts=True)
        assert seeds.tolist() == expected
        assert set(counts.tolist()) == {8}
        assert len(rollout.episode_returns) == 8 * len(expected)


def test_a_truncated_turn_bootstraps_from_the_true_last_observation():
    """With autoreset's ghost step the value would be that of the next episode's first observation."""
    policy = ScriptedPolicy()
    rollout = collector(num_envs=1).play(policy, rng(), episodes=2)
    assert rollout.truncated[0].tolist() == [False, False, True] * 2
    assert not rollout.terminated[0].any()
    for turn in (2, 5):
        text = rollout.contexts[int(rollout.context_ids[0, turn])].observation_text
        assert text.endswith(" 2")  # acted on turn 2; the turn led to an observation "<n> 3", three or four characters
        assert float(rollout.next_values[0, turn]) in (3.0, 4.0)
    last = [text for text in policy.asked if text.endswith(" 3")]
    assert last, "nobody asked for the value of an observation that was truncated away"


def test_a_terminated_turn_has_no_next_value():
    """Bootstrapping at a termination would pay for a future that does not exist."""
    rollout = collector("Echo-v0", echo.EchoAgent(), limit=10).play(ScriptedPolicy(), rng(), episodes=4)
    assert rollout.terminated[rollout.mask].all()
    assert rollout.next_values[rollout.mask].tolist() == [0.0] * 4


def test_each_distinct_question_is_asked_once():
    """400 hands of Echo have 3 distinct prompts; asking more often is what makes rivals slow."""
    policy = ScriptedPolicy()
    rollout = collector("Echo-v0", echo.EchoAgent(), num_envs=8, limit=10).play(policy, rng(), episodes=400)
    assert sorted(policy.asked) == sorted(echo.WORDS)
    assert len(rollout.contexts) == 3


def test_actions_follow_the_policys_probabilities():
    """A wrong inverse of the distribution shows here: 0.75 +- 4 standard errors of sqrt(.75 * .25 / 2000) = 0.0097."""
    rollout = collector("Echo-v0", echo.EchoAgent(), num_envs=8, limit=10).play(ScriptedPolicy(), rng(), episodes=2000)
    first = (rollout.choices[rollout.mask] == 0).float().mean()
    assert abs(float(first) - 0.75) < 4 * 0.0097


def test_greedy_takes_the_likeliest():
    """Evaluation without a generator must not sample."""
    rollout = collector().play(ScriptedPolicy(), None, episodes=3)
    assert (rollout.choices[rollout.mask] == 0).all()


def test_the_same_seed_plays_the_same():
    """Reproducibility of everything random on the data side."""
    a = collector().play(ScriptedPolicy(), rng(3), episodes=6)
    b = collector().play(ScriptedPolicy(), rng(3), episodes=6)
    c = collector().play(ScriptedPolicy(), rng(4), episodes=6)
    assert torch.equal(a.choices, b.choices)
    assert torch.equal(a.context_ids, b.context_ids)
    assert not torch.equal(a.choices, c.choices)


def test_a_rollout_of_turns_goes_on_in_the_next():
    """Cutting at the rollout's end is a truncation with bootstrap, not an end of the episode."""
    player = collector(num_envs=2, limit=None)
    first = player.play(ScriptedPolicy(), rng(), turns=8)
    assert first.mask.shape == (2, 4)
    assert first.truncated.tolist() == [[False, False, False, True]] * 2
    assert len(first.episode_returns) == 0
    second = player.play(ScriptedPolicy(), rng(), turns=8)
    assert second.rewards[0].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_a_restored_collector_stands_where_the_old_one_stood():
    """Environments in mid-episode come back by seed and answers."""
    generator = rng(1)
    old = collector(num_envs=2, limit=7)
    old.play(ScriptedPolicy(), generator, turns=10)
    state, random_state = old.state_dict(), generator.bit_generator.state
    expected = old.play(ScriptedPolicy(), generator, turns=10)
    new, again = collector(num_envs=2, limit=7), rng(99)
    again.bit_generator.state = random_state
    new.load_state_dict(state)
    restored = new.play(ScriptedPolicy(), again, turns=10)
    for name in ("context_ids", "choices", "rewards", "truncated", "next_values"):
        assert torch.equal(getattr(restored, name), getattr(expected, name)), name
    assert [c.observation_text for c in restored.contexts] == [c.observation_text for c in expected.contexts]


def test_an_environment_that_ignores_its_seed_cannot_be_restored():
    """Silently going on from another state would break exact resume."""
    player = collector(num_envs=1, limit=None)
    player.play(ScriptedPolicy(), rng(), turns=4)
    state = player.state_dict()
    state["slots"][0]["observation_text"] = "somewhere else"
    with pytest.raises(ValueError, match=r"Counting-v0 does not come back.*episodes_per_rollout"):
        collector(num_envs=1, limit=None).load_state_dict(state)


def test_another_number_of_environments_in_mid_episode_is_refused():
    """Half of the episodes would be lost."""
    player = collector(num_envs=2, limit=None)
    player.play(ScriptedPolicy(), rng(), turns=4)
    with pytest.raises(ValueError, match=r"holds 2 environments.*num_envs is 3"):
        collector(num_envs=3, limit=None).load_state_dict(player.state_dict())


def test_transcripts_hold_whole_episodes():
    """The first episodes of a rollout, with the probabilities that were sampled from."""
    player = collector(num_envs=2, kept=3)
    player.play(ScriptedPolicy(), rng(), episodes=5)
    assert len(player.transcripts) == 3
    assert [len(episode.turns) for episode in player.transcripts] == [3, 3, 3]
    assert {episode.seed for episode in player.transcripts} == {100, 101, 102}
    assert all(episode.truncated and episode.episode_return == 6.0 for episode in player.transcripts)
    assert player.transcripts[0].turns[0].probabilities == {"stop": pytest.approx(0.75), "go on": pytest.approx(0.25)}


def test_a_cache_that_is_cleared_in_mid_rollout_changes_nothing(monkeypatch):
    """60 tokens hold one prompt or two. What was forgotten and made anew was another question, with a row, a draw and a
    gradient of its own."""

    def played(tokens):
        monkeypatch.setattr(prompt_builder, "CACHED_TOKENS", tokens)
        policy = ScriptedPolicy()
        rollout = collector(env_id="Echo-v0", agent=echo.EchoAgent(), turns=3, num_envs=3, limit=None).play(
            policy, rng(), episodes=12
        )
        return policy.asked, rollout

    (asked, rollout), (asked_again, forgetful) = played(10**9), played(60)
    assert len(asked) == 3, "a question a word"
    assert asked_again == asked
    assert forgetful.contexts == rollout.contexts
    for name in ("context_ids", "choices", "rewards", "next_values"):
        assert torch.equal(getattr(forgetful, name), getattr(rollout, name)), name


def test_progress_is_told():
    """A bar that never moves looks like a hang."""
    told = []
    collector().play(ScriptedPolicy(), rng(), episodes=4, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (4, 4)
    assert len(told) > 1
