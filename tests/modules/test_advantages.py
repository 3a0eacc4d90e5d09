"""Advantages of each algorithm by hand, on `text_rollout`, and GAE along tokens against a plain loop.

Stream 0: an episode of two turns with rewards 1 and 2, then one of a turn with reward 0.5. Stream 1: 0 and 1,
then 0.5. The first two episodes are from seed 7 and begin at 'red', the others are from seed 8.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from helpers.rollouts import (
    RESPONSE_IDS,
    candidate_learner,
    candidate_rollout,
    gradients_of,
    text_learner,
    text_rollout,
    with_fixed_statistics,
)
from lgym.functional import gae
from lgym.modules import A2C, GRPO, PPO, REINFORCE, RLOO, GiGPO
from lgym.modules.advantages import tells_nothing, token_timeline, turn_timeline
from lgym.modules.preparation import evaluate_batch

PLAIN = {"whiten_advantages": False}
PROMPT_VALUES = {
    "prompt_values": torch.tensor([1.0, 2.0, 3.0]),
    "next_values": torch.tensor([[2.0, 0.0, 0.0], [3.0, 0.0, 0.0]]),
}
"""Values 1 at 'red', 2 at 'green' and 3 at 'a long way round', which are met in the order 0, 1, 2 and 0, 2,
2."""


def turn_advantages(module, **changes) -> list[float]:
    """The advantage of each response, the same for all its tokens; 0 where it was left out."""
    batch, _ = module.prepare(text_rollout(**changes))
    found = dict.fromkeys(RESPONSE_IDS, 0.0)
    for response, mask, advantages in zip(
        batch.response_ids, batch.action_mask, batch.advantages, strict=True
    ):
        assert (advantages[~mask] == 0).all()
        (found[response],) = set(advantages[mask].tolist())
    return [found[response] for response in RESPONSE_IDS]


def turn_returns(module, **changes) -> list[float]:
    """The target of the value before each response."""
    batch, _ = module.prepare(text_rollout(**changes))
    returns = dict(zip(batch.response_ids, batch.returns[:, 0].tolist(), strict=True))
    return [returns[response] for response in RESPONSE_IDS]


@pytest.mark.parametrize(
    ("algorithm", "settings", "expected"),
    [
        (GRPO, {"scale_by_std": False}, [1, 1, -1, -1, 0, 0]),
        (RLOO, {}, [2, 2, -2, -2, 0, 0]),  # 3 minus the other's 1
        # at 'red' 1 + 2 and 0 + 1 are 1 above and below their mean; nobody else was where they were
        (GiGPO, {"scale_by_std": False, "gamma": 1.0}, [2, 1, -2, -1, 0, 0]),
        (GiGPO, {"scale_by_std": False, "gamma": 1.0, "step_weight": 0.5}, [1.5, 1, -1.5, -1, 0, 0]),
        # returns to go at gamma 0.5: 2, 2; 0.5, 1; 0.5 and 0.5, each beside those of the other episodes' same turns
        (REINFORCE, PLAIN | {"gamma": 0.5}, [1.5, 1.0, -0.5, -1.0, -0.5, -0.5]),
        # every value is 0, and should be 1: rewards of 5 in six turns of which two are discounted, 5 / (6 - 2 / 2)
        (A2C, PLAIN | {"gamma": 0.5}, [1, 1, -0.5, 0, -0.5, -0.5]),
        (PPO, PLAIN | {"gamma": 0.5, "gae_lambda": 1.0}, [1, 1, -0.5, 0, -0.5, -0.5]),
        (PPO, PLAIN | {"gamma": 0.5, "gae_lambda": 0.0}, [0.5, 1, -0.5, 0, -0.5, -0.5]),
    ],
)
def test_advantages_by_hand(algorithm, settings, expected):
    module = text_learner(algorithm, **settings)
    if algorithm.has_critic:
        with_fixed_statistics(module)
    assert turn_advantages(module) == pytest.approx(expected, abs=1e-6)


def test_a_late_turn_is_no_better_for_being_late():
    """Where each step costs 1 and two episodes come to nothing alike, nothing is told. By the mean of all turns
    the last of three is one above it, and the first one below."""
    ends = torch.tensor([[False, False, True]] * 2)
    rollout = {
        "rewards": torch.full((2, 3), -1.0),
        "terminated": ends,
        "episode_ids": torch.tensor([[0, 0, 0], [1, 1, 1]]),
        "reset_seeds": torch.tensor([[7] * 3, [8] * 3]),
        **{
            f"episode_{name}": torch.full((2,), -3.0)
            for name in ("returns", "lengths", "penalties", "successes")
        },
    }
    module = text_learner(REINFORCE, gamma=1.0, **PLAIN)
    assert turn_advantages(module, **rollout) == [0.0] * 6
    rollout["rewards"] = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, 5.0]])
    assert turn_advantages(module, **rollout) == [-6.0, -6.0, 6.0, 6.0, -6.0, 6.0]


@pytest.mark.parametrize("algorithm", [A2C, PPO])
def test_truncation_bootstraps_and_termination_does_not(algorithm):
    """Episode 2 has the value 10 where it ended: that counts, at gamma 0.5 as 5, where it was truncated, and
    else not. All values are too low, by 5 / 5, and by 10 / 4.5 where five more are expected of half a turn
    more."""
    module = with_fixed_statistics(text_learner(algorithm, gamma=0.5, gae_lambda=1.0, **PLAIN))
    next_values = torch.zeros(2, 3)
    next_values[0, 2] = 10.0
    assert turn_advantages(module, next_values=next_values)[4] == pytest.approx(0.5 - 1)
    truncated = {
        "next_values": next_values,
        "terminated": torch.tensor([[False, True, False], [False, True, True]]),
        "truncated": torch.tensor([[False, False, True], [False, False, False]]),
    }
    assert turn_advantages(module, **truncated)[4] == pytest.approx(5.5 - (10 / 4.5) / 2)


@pytest.mark.parametrize("algorithm", [A2C, PPO])
@pytest.mark.parametrize(
    ("gae_lambda", "returns"),
    [
        # 1 + 0.5 * 2 = 2, 2; 0 + 0.5 * 1 = 0.5, 1; 0.5, 0.5
        (1.0, [2.0, 2.0, 0.5, 1.0, 0.5, 0.5]),
        # the next value in place of the rest: 1 + 0.5 * 0.9 = 1.45, 2; 0 + 0.5 * 1.9 = 0.95, 1; 0.5, 0.5
        (0.0, [1.45, 2.0, 0.95, 1.0, 0.5, 0.5]),
    ],
)
def test_values_learn_returns(algorithm, gae_lambda, returns):
    """Catches a value that learns the turn's reward (1, 2, 0, 1, 0.5, 0.5) or its advantage in place of its
    return. All values are 1.1 too high: their errors 1, 0, 0.5, -2, -2.5 and -2.5 sum to -5.5, of 5 turns that
    are not discounted."""
    module = with_fixed_statistics(text_learner(algorithm, gamma=0.5, gae_lambda=gae_lambda, **PLAIN))
    assert turn_returns(module, **PROMPT_VALUES) == pytest.approx(returns, abs=1e-6)
    values = [value - 1.1 for value in (1.0, 2.0, 1.0, 3.0, 3.0, 3.0)]  # of each turn's state
    expected = [target - value for target, value in zip(returns, values, strict=True)]
    assert turn_advantages(module, **PROMPT_VALUES) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("algorithm", [A2C, PPO])
def test_advantages_are_in_standard_deviations_of_returns(algorithm):
    """Catches advantages left in rewards, or returns divided as well. Returns are 2, 2, 0.5, 1, 0.5, 0.5: their
    mean is 6.5 / 6, that of their squares 9.75 / 6, so their variance 1.625 - 42.25 / 36 = 0.451389. Values of 1, 2 and
    3 are 1.1 too high."""
    module = text_learner(algorithm, gamma=0.5, gae_lambda=1.0, **PLAIN)
    assert turn_returns(module, **PROMPT_VALUES) == pytest.approx([2.0, 2.0, 0.5, 1.0, 0.5, 0.5], abs=1e-6)
    expected = [a / 0.451389**0.5 for a in (2 + 0.1, 2 - 0.9, 0.5 + 0.1, 1 - 1.9, 0.5 - 1.9, 0.5 - 1.9)]
    assert turn_advantages(module, **PROMPT_VALUES) == pytest.approx(expected, abs=1e-6)


def test_the_standard_deviation_of_choices():
    """The same between candidates: returns to go are 1, -1, 0, 2 and 2, in the order of prompts; their mean is
    0.8, that of their squares 2, so their variance 2 - 0.64 = 1.36. Of three episodes, which begin at prompts 0, 0
    and 2 and return 1, -1 and 2, all values are too low by the mean of what these lack."""
    module = candidate_learner(gamma=1.0, gae_lambda=1.0, **PLAIN)
    rollout = candidate_rollout(module)
    batch, metrics = module.prepare(rollout)
    assert batch.returns[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0, 2.0, 2.0], abs=1e-6)
    values = rollout.prompt_values
    offset = float(1.0 - values[0] - 1.0 - values[0] + 2.0 - values[2]) / 3
    assert metrics["value/offset"] == pytest.approx(offset, abs=1e-6)
    expected = (batch.returns - offset - values[batch.prompt_index][:, None]) / 1.36**0.5
    torch.testing.assert_close(batch.advantages, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize(
    ("algorithm", "settings"), [(A2C, {}), (PPO, {}), (PPO, {"advantage_level": "token"}), (None, {})]
)
def test_a_detached_value_leaves_the_language_model_alone(algorithm, settings, detached):
    """Catches `detach_value` ignored, or always on: without advantages, entropy and divergences only the
    value learns, and its gradient is in the adapters or not."""
    if algorithm is None:
        module = candidate_learner(detach_value=detached, entropy_coef=0.0, old_kl_coef=0.0, target_kl=None)
        batch, _ = module.prepare(candidate_rollout(module))
    else:
        module = text_learner(algorithm, detach_value=detached, **settings)
        batch, _ = module.prepare(text_rollout())
    batch.advantages.zero_()
    moved = {name for name, gradient in gradients_of(module, batch).items() if gradient.any()}
    assert any("lora" in name for name in moved) != detached
    assert any("value_head" in name for name in moved)


# -- advantages of tokens ------------------------------------------------------------------------------------


def token_learner(**settings):
    return text_learner(PPO, advantage_level="token", gamma=0.5, **PLAIN, **settings)


def test_tokens_have_advantages_of_their_own(monkeypatch):
    """With lambda 0, a token is compared with the value of the next; the last of a turn with its reward and
    the next turn's. All values are too low by one level, which counts at the ends of turns alone."""
    values = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))  # sorted as the batch
    monkeypatch.setattr(
        "lgym.modules.ppo.evaluate_batch", lambda policy, batch: SimpleNamespace(values=values)
    )
    module = with_fixed_statistics(token_learner(gae_lambda=0.0))
    batch, metrics = module.prepare(text_rollout(next_values=torch.full((2, 3), 2.0)))
    offset = metrics["value/offset"]  # rewards of 5, two turns that lead to a value of 2, and 6 first tokens
    first = sum(float(values[row, 0]) for row in range(6))
    assert offset == pytest.approx((5.0 + 2 * 0.5 * 2.0 - first) / (6 - 2 * 0.5), abs=1e-6)
    turn = batch.response_ids.index(RESPONSE_IDS[2])  # episode 1's first: four tokens, reward 0
    expected = [float(values[turn, t + 1] - values[turn, t]) for t in range(3)] + [
        0.5 * (2.0 + offset) - float(values[turn, 3]) - offset
    ]
    assert batch.advantages[turn].tolist() == pytest.approx(expected, abs=1e-6)
    last = batch.response_ids.index(RESPONSE_IDS[3])  # its second, which terminates: three tokens, reward 1
    expected = [float(values[last, t + 1] - values[last, t]) for t in range(2)] + [
        1.0 - float(values[last, 2]) - offset
    ]
    assert batch.advantages[last, :3].tolist() == pytest.approx(expected, abs=1e-6)
    assert batch.returns[last, 2] == pytest.approx(1.0)


def test_the_level_of_tokens_is_not_that_of_one_turn(monkeypatch):
    """Undiscounted and without an end, rewards of 5 are known from 13 tokens of which 8 were seen in a row:
    3 turns in a row made it a third of that."""
    monkeypatch.setattr(
        "lgym.modules.ppo.evaluate_batch", lambda policy, batch: SimpleNamespace(values=torch.zeros(6, 4))
    )
    module = text_learner(PPO, advantage_level="token", gamma=1.0, **PLAIN)
    _, metrics = module.prepare(text_rollout(terminated=torch.zeros(2, 3, dtype=torch.bool)))
    assert metrics["value/offset"] == pytest.approx(5.0 / (13 / 8), rel=1e-6)


def test_tokens_without_any_signal_have_nothing_to_learn():
    """Catches a value that is trained on its own errors where all rewards are alike and nothing ends."""
    rollout = text_rollout(rewards=torch.zeros(2, 3), terminated=torch.zeros(2, 3, dtype=torch.bool))
    batch, _ = token_learner().prepare(rollout)
    assert batch.idle
    assert not batch.advantages.any()


def test_steps_that_are_none_have_no_level():
    """Values that are added where a stream has ended would be errors there, which the last turn of a stream that
    is shorter than others, and neither terminated nor truncated, would be credited with."""
    changes = {
        "mask": torch.tensor([[True, True, False], [True, True, True]]),
        "rewards": torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 0.5]]),
        "terminated": torch.tensor([[False, False, True], [False, True, True]]),
    }
    module = with_fixed_statistics(text_learner(PPO, gamma=0.5, gae_lambda=1.0, **PLAIN))
    batch, metrics = module.prepare(text_rollout(**changes))
    last = batch.response_ids.index(RESPONSE_IDS[1])  # reward 2, then half of a value of 0 at its level
    offset = metrics["value/offset"]
    assert offset > 0.1
    assert float(batch.advantages[last, 0]) == pytest.approx(2.0 + 0.5 * offset - offset, abs=1e-6)


def test_the_standard_deviation_reaches_tokens():
    """With lambda 1, each token of an episode's last turn has that turn's reward (2, 1, 0.5 and 0.5) as its
    return, and that minus its value, at the right level, over the standard deviation of the returns of all 13
    tokens as its advantage."""
    module = token_learner(gae_lambda=1.0)
    batch, metrics = module.prepare(text_rollout(**PROMPT_VALUES))
    head = module.policy.llm.value_head
    std = float(batch.returns[batch.action_mask].std(correction=0))
    assert float(head.std) == pytest.approx(std, rel=1e-5)
    assert std != pytest.approx(1.0, rel=0.1)
    head.mean.zero_()
    head.std.fill_(1.0)
    head.feature_mean.zero_()
    head.feature_std.fill_(1.0)  # as the values were when the rollout was prepared
    with module.inference() as policy:
        values = evaluate_batch(policy, batch).values
    for turn, reward in ((1, 2.0), (3, 1.0), (4, 0.5), (5, 0.5)):
        row = batch.response_ids.index(RESPONSE_IDS[turn])
        mask = batch.action_mask[row]
        assert batch.returns[row][mask].tolist() == pytest.approx(
            [reward] * len(RESPONSE_IDS[turn]), abs=1e-5
        )
        expected = (reward - metrics["value/offset"] - values[row][mask]) / std
        assert batch.advantages[row][mask].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


CHOSEN_POSITIONS = ([0, 1], [2], [0, 3, 5], [0, 1, 2, 3], [4])
"""The tokens that the policy chose in each of five turns, stream by stream, with forced ones between."""

ACTION_MASK = torch.zeros(5, 6, dtype=torch.bool)
for turn, positions in enumerate(CHOSEN_POSITIONS):
    ACTION_MASK[turn, positions] = True
VALUES = torch.arange(30.0).view(5, 6) / 30
REWARDS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])
ROLLOUT = SimpleNamespace(
    values=torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.0]]),
    next_values=torch.tensor([[0.2, 9.0, 0.7], [0.5, 9.0, 0.0]]),
    terminated=torch.tensor([[False, True, False], [False, True, True]]),
    truncated=torch.tensor([[False, False, True], [False, False, False]]),
    mask=torch.tensor([[True, True, True], [True, True, False]]),
)
"""Stream 0: an episode of two turns, then one that is truncated; stream 1: one of two turns."""

TURNS = SimpleNamespace(rollout=ROLLOUT, rewards=REWARDS)


def plain_gae(gamma, gae_lambda) -> list[tuple[float, float]]:
    """(advantage, return) of every chosen token, turn by turn, backwards through each stream."""
    results = {}
    for stream, turns in ((0, (0, 1, 2)), (1, (3, 4))):
        steps = [(turn, token) for turn in turns for token in CHOSEN_POSITIONS[turn]]
        advantage = 0.0
        for i in reversed(range(len(steps))):
            turn, token = steps[i]
            n = turn - turns[0]
            last = i + 1 == len(steps) or steps[i + 1][0] != turn
            terminated = last and bool(ROLLOUT.terminated[stream, n])
            ended = terminated or (last and bool(ROLLOUT.truncated[stream, n]))
            next_value = float(ROLLOUT.next_values[stream, n]) if last else float(VALUES[steps[i + 1]])
            discount = gamma if last else 1.0
            reward = float(REWARDS[stream, n]) * last
            delta = reward + discount * next_value * (not terminated) - float(VALUES[turn, token])
            advantage = delta + discount * gae_lambda * (0.0 if ended else advantage)
            results[turn, token] = (advantage, advantage + float(VALUES[turn, token]))
    return [results[turn, token] for turn, tokens in enumerate(CHOSEN_POSITIONS) for token in tokens]


def gae_of(timeline, gamma, gae_lambda):
    steps = (timeline.rewards, timeline.values, timeline.next_values, timeline.terminated, timeline.truncated)
    discount = gamma if timeline.ends_turn is None else gamma ** timeline.ends_turn.float()
    return [x[timeline.mask] for x in gae(*steps, gamma=discount, gae_lambda=gae_lambda)]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.9, 0.8), (0.5, 0.0)])
def test_gae_of_tokens_is_that_of_a_plain_loop(gamma, gae_lambda):
    timeline = token_timeline(TURNS, VALUES, ACTION_MASK)
    assert timeline.mask.sum(1).tolist() == [6, 5]
    found = torch.stack(gae_of(timeline, gamma, gae_lambda), dim=1)
    torch.testing.assert_close(found, torch.tensor(plain_gae(gamma, gae_lambda)), rtol=1e-5, atol=1e-6)


def test_one_token_per_turn_has_the_turns_advantage():
    """Whichever column the token stands in."""
    action_mask = torch.zeros(5, 6, dtype=torch.bool)
    action_mask[torch.arange(5), torch.tensor([0, 5, 2, 1, 3])] = True
    values = torch.zeros(5, 6)
    values[action_mask] = ROLLOUT.values[ROLLOUT.mask]
    by_token = gae_of(token_timeline(TURNS, values, action_mask), 0.9, 0.7)[0]
    by_turn = gae_of(turn_timeline(TURNS), 0.9, 0.7)[0]
    torch.testing.assert_close(by_token, by_turn)


# -- nothing to learn -----------------------------------------------------------------------------------------------
SAME_REWARDS = torch.full((2, 3), -1.0)
OTHER_REWARDS = torch.tensor([[-1.0, 0.0, -1.0], [-1.0, -1.0, 0.0]])
NO_END = torch.tensor([[False, False, False], [False, False, True]])  # the last is idle
AN_END = torch.tensor([[False, True, False], [False, False, True]])


@pytest.mark.parametrize("whiten", [True, False])
def test_without_any_signal_there_is_nothing_to_learn(whiten):
    """The value's errors, on the scale of 1, drove a policy whose rewards were all the same into one action,
    and one that held its pole until it fell. An entropy bonus has something to do all the same."""
    module = candidate_learner(whiten_advantages=whiten)
    rollout = candidate_rollout(module, rewards=SAME_REWARDS, terminated=NO_END)
    assert tells_nothing(rollout)
    before = float(module.value_head.mean), float(module.value_head.std)
    batch, _ = module.prepare(rollout)
    assert batch.advantages.tolist() == [[0.0]] * 5
    assert (float(module.value_head.mean), float(module.value_head.std)) == before
    loss, metrics = module.loss(batch)
    loss.backward()
    assert loss.item() == 0.0
    assert all(float(p.grad.abs().max()) == 0.0 for p in module.parameters() if p.grad is not None)
    assert metrics["loss/value"] > 0
    assert metrics["policy/entropy"] > 0
    exploring = candidate_learner(whiten_advantages=whiten, entropy_coef=0.1)
    loss, _ = exploring.loss(exploring.prepare(rollout)[0])
    assert loss.item() != 0.0


@pytest.mark.parametrize(("place", "idle"), [("loss", False), ("reward", True)])
def test_a_divergence_from_the_reference_is_something_to_do_in_the_loss(place, idle):
    """In the rewards it is not: advantages are 0 and the value's errors alone would take steps."""
    module = candidate_learner(kl_coef=0.1, kl_in=place)
    batch, _ = module.prepare(candidate_rollout(module, rewards=SAME_REWARDS, terminated=NO_END))
    assert batch.idle == idle


@pytest.mark.parametrize(
    ("rewards", "terminated"),
    [(OTHER_REWARDS, NO_END), (SAME_REWARDS, AN_END)],
    ids=["another reward", "an end"],
)
def test_another_reward_or_an_end_is_a_signal(rewards, terminated):
    """A pole that falls shows in the end alone: every push has the same reward."""
    rollout = candidate_rollout(candidate_learner(), rewards=rewards, terminated=terminated)
    assert not tells_nothing(rollout)
    module = candidate_learner()
    batch, _ = module.prepare(rollout)
    assert not batch.idle
    assert float(batch.advantages.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(batch.advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
