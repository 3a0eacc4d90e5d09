"""From any rollout to its minibatches: every turn once a pass, with what belongs to it, and the mean over the rollout."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lgym.modules.bundles import bundles_of
from lgym.modules.tokens import TokenLoss, TokenObjective

from helpers import tiny
from helpers.fuzz import inputs
from lgym.batch import Context, Likelihoods, Reply, Rollout
from lgym.functional import kl_estimate, policy_gradient_loss, ppo_clip_loss, value_loss
from lgym.models.prefix_sharing.packing import common_prefix_length, pack
from lgym.modules import PPO

LIMIT = 9
"""The longest reply."""


@st.composite
def contexts(draw):
    """Prompts that share beginnings, some of them going on from another, and candidates of any number."""
    made = []
    for number in range(draw(st.integers(1, 6))):
        prompts = [context.prompt_ids for context in made]
        before = draw(st.sampled_from([(), *prompts, *prompts[-1:] * 5]))
        prompt = before + tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3)))
        names = tuple(f"{number} {c}" for c in range(draw(st.integers(1, 4))))
        made.append(Context(prompt, tuple((c,) for c in range(len(names))), names, str(number)))
    return tuple(made)


@st.composite
def rollouts(draw, speaks):
    """E streams of turns, idle ones anywhere, episodes of any length."""
    asked, rng = draw(contexts()), np.random.default_rng(draw(st.integers(0, 2**32)))
    streams, turns = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    shape = streams, turns
    mask = rng.random(shape) < draw(st.sampled_from([1.0, 0.7, 0.2]))
    mask[0, 0] = True
    ids = rng.integers(len(asked), size=shape)
    counts = np.array([len(context.candidates) for context in asked])
    ends = rng.random(shape) < 0.3
    episodes = np.cumsum(ends, axis=1) + 100 * np.arange(streams)[:, None]
    replies = tuple(reply(rng) for _ in range(streams * turns)) if speaks else ()
    logprobs = np.full((len(asked), counts.max()), -np.inf, dtype=np.float32)
    for row, count in zip(logprobs, counts, strict=True):
        row[:count] = np.log(rng.dirichlet(np.ones(count)))
    return Rollout(
        contexts=asked,
        context_ids=torch.from_numpy(ids),
        choices=torch.from_numpy(rng.permutation(streams * turns).reshape(shape) if speaks else rng.integers(counts[ids])),
        rewards=torch.from_numpy(rng.normal(size=shape).astype(np.float32) * mask),
        terminated=torch.from_numpy(ends | ~mask),
        truncated=torch.from_numpy((rng.random(shape) < 0.2) & mask & ~ends),
        cut=torch.zeros(shape, dtype=torch.bool),
        mask=torch.from_numpy(mask),
        parsed=torch.ones(shape, dtype=torch.bool),
        episode_ids=torch.from_numpy(episodes),
        reset_seeds=torch.from_numpy(episodes),
        candidate_logprobs=None if speaks else torch.from_numpy(logprobs),
        replies=replies,
        context_values=torch.from_numpy(rng.normal(size=len(asked)).astype(np.float32)),
        next_values=torch.from_numpy(rng.normal(size=shape).astype(np.float32)),
        episode_returns=torch.zeros(0),
        episode_lengths=torch.zeros(0),
        episode_penalties=torch.zeros(0),
        play_seconds=0.0,
    )


def reply(rng):
    """Few words and few lengths, so that some say the same. Tokens and choice settle which of them were drawn."""
    ids, choice = tuple(rng.integers(0, 2, size=rng.integers(1, 4)).tolist()), int(rng.integers(-1, 2))
    drawn = tuple((place + sum(ids) + choice) % 3 > 0 for place in range(len(ids)))
    drawn = drawn if any(drawn) else (True,) * len(ids)
    logprobs = tuple(float(-rng.random()) if own else 0.0 for own in drawn)
    return Reply(ids, logprobs, True, "", drawn, choice)


ORDERS = st.integers(0, 2**32)
SIZES = st.integers(1, 8)


def passed(batch, size, seed):
    """One shuffled pass."""
    return list(batch.minibatches(size, np.random.default_rng(seed).permutation(len(batch.bundles)).tolist()))


@cache
def ppo(whiten_advantages):
    return PPO(whiten_advantages=whiten_advantages)


@inputs(60)
@given(rollouts(speaks=False), SIZES, ORDERS, st.booleans())
def test_every_turn_is_in_one_minibatch_of_a_pass(rollout, size, seed, whiten_advantages):
    """Its context, choice and distribution with it; and the minibatches' losses average to the mean over the rollout."""
    batch = ppo(whiten_advantages).prepare(rollout)
    mask, count = rollout.mask, int(rollout.mask.sum())
    parts = passed(batch, size, seed)
    assert sum(map(len, parts)) == len(batch) == count
    seen = [context for part in parts for context in part.contexts]
    assert len(set(seen)) == len(seen)
    found = []
    for part in parts:
        assert len(part.contexts) < size + max(map(len, batch.bundles))
        for row, choice, value, advantage, target in zip(
            *(x.tolist() for x in (part.rows, part.choices, part.old_values, part.advantages, part.returns)), strict=True
        ):
            context = part.contexts[row]
            number = rollout.contexts.index(context)
            width = len(context.candidates)
            assert torch.equal(part.old_logprobs[row, :width], rollout.candidate_logprobs[number, :width])
            assert part.old_logprobs[row, width:].isneginf().all()
            assert value == float(rollout.context_values[number])
            found.append((number, choice, advantage, target))
    own = zip(batch.rows.tolist(), batch.choices.tolist(), batch.advantages.tolist(), batch.returns.tolist(), strict=True)
    assert sorted(found) == sorted(own)
    assert sorted(turn[:2] for turn in found) == sorted(
        zip(rollout.context_ids[mask].tolist(), rollout.choices[mask].tolist(), strict=True)
    )
    losses = [float(part.returns.double().sin().sum() * part.scale) for part in parts]
    assert sum(losses) / len(parts) == pytest.approx(float(batch.returns.double().sin().mean()), abs=1e-9)


def likely(context, ids, choice):
    """Some number that depends on all that was said and to what."""
    return [-((hash((context.prompt_ids, ids[: t + 1], choice)) % 997) / 400.0) for t in range(len(ids))]


class Oracle:
    """A policy whose likelihoods and values of a token depend on all before it, and on nothing else."""

    max_new_tokens = LIMIT

    def __init__(self):
        self.asked = []

    def likelihoods(self, batch, entropy_gradient=False):
        said = list(zip(batch.rows.tolist(), batch.replies, batch.choices.tolist(), strict=True))
        self.asked.append([(batch.contexts[row], ids, choice) for row, ids, choice in said])
        logprobs = torch.zeros(batch.mask.shape, dtype=torch.float64)
        for out, (row, ids, choice) in zip(logprobs, said, strict=True):
            own = torch.tensor(likely(batch.contexts[row], ids, choice))[: len(out)]
            out[: len(own)] = own
        return Likelihoods(logprobs * batch.mask, logprobs.abs() * batch.mask, logprobs * 2)


SETTINGS = st.builds(
    TokenLoss,
    clip_low=st.just(0.2),
    clip_high=st.just(0.3),
    entropy_coef=st.sampled_from([0.0, 0.1]),
    normalise_by=st.sampled_from(["reply", "tokens", "limit"]),
) | st.builds(TokenLoss, clip_low=st.none(), clip_high=st.none(), normalise_by=st.sampled_from(["reply", "tokens", "limit"]))


@inputs(60)
@given(rollouts(speaks=True), SIZES, ORDERS, SETTINGS, st.booleans(), st.booleans())
def test_the_losses_of_a_pass_average_to_the_rollouts(rollout, size, seed, settings, with_values, some_teach_nothing):
    """Token by token in a plain loop over the rollout; a reply that several turns gave is asked of the policy once."""
    policy = Oracle()
    learner = SimpleNamespace(
        policy=policy,
        llm_config=None,
        imitate=lambda *_: None,
        rollout_metrics={},
        taught=[],
        warming_up=False,
        reward_scale=1.0,
    )
    objective = TokenObjective(learner, settings, value_coef=0.5)
    batch, _ = objective.begin(rollout)
    count = int(rollout.mask.sum())
    advantages = torch.from_numpy(np.random.default_rng(seed).normal(size=count))
    if some_teach_nothing:
        advantages[::2] = 0.0
    returns = advantages + 1.0 if with_values else None
    batch = objective.credited(batch, advantages, returns)
    parts = passed(batch, size, seed)
    assert sum(map(len, parts)) == len(batch) <= count
    losses = [float(objective.loss(part)[0]) for part in parts]
    for asked, part in zip(policy.asked, parts, strict=True):
        assert len(set(asked)) == len(asked) <= len(part)
        assert len(asked) <= size
    assert len({said for asked in policy.asked for said in asked}) == sum(map(len, policy.asked))
    expected = plain_loss(rollout, settings, advantages.float(), returns)
    assert sum(losses) / len(parts) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def plain_loss(rollout, settings, advantages, returns):
    """Turn by turn in the order of time."""
    turns = zip(rollout.context_ids[rollout.mask].tolist(), rollout.choices[rollout.mask].tolist(), strict=True)
    total, tokens, count = 0.0, 0, 0
    for turn, (number, choice) in enumerate(turns):
        said = rollout.replies[choice]
        new, old = torch.tensor(likely(rollout.contexts[number], said.ids, said.choice)), torch.tensor(said.logprobs)
        advantage = advantages[turn].expand_as(new).to(new)
        if settings.clip_low is None:
            losses = policy_gradient_loss(new, advantage)
        else:
            losses = ppo_clip_loss(new, old, advantage, clip_low=settings.clip_low, clip_high=settings.clip_high)
        losses = losses - settings.entropy_coef * new.abs()
        if returns is not None:
            losses = losses + 0.5 * value_loss(2 * new[:1], returns[turn : turn + 1].to(new))
        drawn = losses[torch.tensor(said.mask)]
        total += float(drawn.sum()) / {"reply": len(drawn), "tokens": 1, "limit": LIMIT}[settings.normalise_by]
        tokens, count = tokens + len(drawn), count + 1
    return total / (tokens if settings.normalise_by == "tokens" else count)


@inputs(150)
@given(rollouts(speaks=False))
def test_bundles_share_out_the_contexts(rollout):
    """Each that was acted on in one bundle, where each prompt goes on from the one before."""
    bundles = bundles_of(rollout)
    assert sorted(c for bundle in bundles for c in bundle) == rollout.context_ids[rollout.mask].unique().tolist()
    for bundle in bundles:
        prompts = [rollout.contexts[c].prompt_ids for c in bundle]
        assert all(
            len(after) > len(before) and after[: len(before)] == before
            for before, after in zip(prompts, prompts[1:], strict=False)
        )


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=12)


@inputs(120)
@given(PATHS, st.integers(1, 30), st.sampled_from(["padded", "prefix_cache", "tree"]))
def test_packed_sequences_come_back_and_see_nothing_else(paths, row_length, layout):
    """Each token sees those before it in its own sequence, in its row or in its row prefix, and no other."""
    packed = pack(paths, row_length=row_length, share_prefixes=layout != "padded", row_prefixes=layout == "tree")
    count = sum(packed.lengths)
    assert packed.num_tokens == count == len(packed.token_ids) == int(packed.token_mask.sum())
    seen = [  # by each token
        sorted([*prefix[: int(packed.row_prefix_lengths[first + place])], *(first + other for other in mask[place].nonzero()[0])])
        for first, length, prefix, mask in zip(
            accumulate(packed.lengths, initial=0), packed.lengths, packed.row_prefixes, packed.attn_masks, strict=False
        )
        for place in range(length)
    ]
    for path, numbers in zip(paths, packed.token_index, strict=True):
        assert tuple(packed.token_ids[list(numbers)].tolist()) == path
        assert packed.positions[list(numbers)].tolist() == list(range(len(path)))
        for depth, number in enumerate(numbers):
            assert seen[number] == sorted(numbers[: depth + 1])
    assert {number for numbers in packed.token_index for number in numbers} == set(range(count))
    distinct = len({path[: n + 1] for path in paths for n in range(len(path))})
    if layout == "padded":
        assert packed.lengths == tuple(sorted(map(len, paths), reverse=True))
    elif len(packed.lengths) == 1:
        assert count == distinct
    assert count >= distinct
    assert layout == "tree" or not any(packed.row_prefixes)
    common = common_prefix_length(paths)
    assert all(path[:common] == paths[0][:common] for path in paths)
    assert any(len(path) == common for path in paths) or len({path[common] for path in paths}) > 1


LLM = tiny.llm(dtype=torch.float64)


BRANCHES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple), min_size=2, max_size=8)


@inputs(20)
@given(BRANCHES, st.sampled_from([1, 4, 40]))
def test_a_packed_sequence_is_computed_as_if_alone(paths, row_length):
    """Hidden states of every token, whoever else is in its row."""
    ones = [1] * len(paths)
    together, index = LLM.hidden_states(paths, ones, row_length=row_length)
    assert LLM.layout == "tree"  # not padded because a first look found it wrong
    for path, rows in zip(paths, index, strict=True):
        alone, own = LLM.hidden_states([path], [1], row_length=row_length)
        torch.testing.assert_close(together[list(rows)], alone[list(own[0])], rtol=1e-9, atol=1e-9)


@inputs(40)
@given(rollouts(speaks=True), st.sampled_from(["k1", "k2", "k3"]), st.floats(0.01, 2))
def test_a_divergence_in_the_rewards_is_the_turns_own(rollout, estimator, kl_coef):
    """Less what the turn's drawn tokens diverge, and nothing taken from idle turns."""
    policy = Oracle()
    learner = SimpleNamespace(policy=policy, llm_config=SimpleNamespace(lora=1), imitate=lambda *_: None)
    objective = TokenObjective(learner, TokenLoss(kl_coef=kl_coef, kl_estimator=estimator, kl_in="reward"))
    objective._reference = lambda batch: policy.likelihoods(batch).logprobs.float()
    batch, turns = objective.begin(rollout)
    assert batch.ref_logprobs is None
    assert torch.equal(turns.rewards[~rollout.mask], rollout.rewards[~rollout.mask])
    for row, place in rollout.mask.nonzero().tolist():
        said = rollout.replies[int(rollout.choices[row, place])]
        context = rollout.contexts[int(rollout.context_ids[row, place])]
        drawn = torch.tensor(said.mask)
        old, reference = torch.tensor(said.logprobs)[drawn], torch.tensor(likely(context, said.ids, said.choice))[drawn]
        kl = float(kl_estimate(old, reference, estimator=estimator).sum())
        assert float(turns.rewards[row, place]) == pytest.approx(float(rollout.rewards[row, place]) - kl_coef * kl, abs=1e-4)
