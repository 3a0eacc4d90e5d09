"""From any rollout to its minibatches: each turn once per pass, with all that belongs to it, and the mean
over the rollout."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import tiny
from helpers.fuzz import inputs
from lgym.batch import PolicyOutput
from lgym.functional import kl_k1, ppo_clip_loss, surrogate_loss, value_loss
from lgym.models.prefix_sharing.packing import common_prefix_length, pack
from lgym.models.value_head import ValueHead
from lgym.modules import PPO, LossConfig, PolicyLearner
from lgym.modules.advantages import Advantages
from lgym.modules.preparation import turns_to_learn_from
from lgym.modules.response_batch import prompt_chains
from lgym.policies import GenerationPolicy
from lgym.policies.distribution_cache import choice_response
from lgym.rollout import Prompt, Response, Rollout

LIMIT = 9
"""The longest response."""


@st.composite
def prompt_lists(draw):
    """Prompts that share beginnings, some of which extend another, and candidates of any number."""
    prompts = []
    for number in range(draw(st.integers(1, 6))):
        earlier = [prompt.token_ids for prompt in prompts]
        beginning = draw(st.sampled_from([(), *earlier, *earlier[-1:] * 5]))
        token_ids = beginning + tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3)))
        candidates = tuple(f"{number} {c}" for c in range(draw(st.integers(1, 4))))
        prompts.append(
            Prompt(token_ids, tuple((c,) for c in range(len(candidates))), candidates, str(number))
        )
    return tuple(prompts)


def random_response(rng):
    """Few tokens and few lengths, so that some are equal; tokens and choice settle the action mask."""
    token_ids, choice = tuple(rng.integers(0, 2, size=rng.integers(1, 4)).tolist()), int(rng.integers(-1, 2))
    mask = tuple((position + sum(token_ids) + choice) % 3 > 0 for position in range(len(token_ids)))
    mask = mask if any(mask) else (True,) * len(token_ids)
    logprobs = tuple(float(-rng.random()) if chosen else 0.0 for chosen in mask)
    return Response(token_ids, logprobs, True, "", mask, choice)


def random_choice(prompt, rng):
    """A choice from a distribution that the prompt settles."""
    count = len(prompt.candidates)
    distribution = np.random.default_rng(prompt.token_ids).dirichlet(np.ones(count)).astype(np.float32)
    return choice_response(prompt, int(rng.integers(count)), tuple(np.log(distribution).tolist()))


@st.composite
def rollouts(draw, generates_text):
    """E streams of turns, idle ones anywhere, episodes of any length."""
    prompts, rng = draw(prompt_lists()), np.random.default_rng(draw(st.integers(0, 2**32)))
    streams, turns = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    shape = streams, turns
    mask = rng.random(shape) < draw(st.sampled_from([1.0, 0.7, 0.2]))
    mask[0, 0] = True
    prompt_index = rng.integers(len(prompts), size=shape)
    ends = rng.random(shape) < 0.3
    episodes = np.cumsum(ends, axis=1) + 100 * np.arange(streams)[:, None]
    response_index = np.arange(streams * turns)
    if generates_text:
        responses = [random_response(rng) for _ in response_index]
        response_index = rng.permutation(response_index)
    else:
        responses = [random_choice(prompts[number], rng) for number in prompt_index.flatten()]
    return Rollout(
        prompts=prompts,
        prompt_values=torch.from_numpy(rng.normal(size=len(prompts)).astype(np.float32)),
        responses=tuple(responses),
        prompt_index=torch.from_numpy(prompt_index),
        response_index=torch.from_numpy(response_index.reshape(shape)),
        rewards=torch.from_numpy(rng.normal(size=shape).astype(np.float32) * mask),
        terminated=torch.from_numpy(ends | ~mask),
        truncated=torch.from_numpy((rng.random(shape) < 0.2) & mask & ~ends),
        cut=torch.zeros(shape, dtype=torch.bool),
        mask=torch.from_numpy(mask),
        parsed=torch.ones(shape, dtype=torch.bool),
        episode_ids=torch.from_numpy(episodes),
        reset_seeds=torch.from_numpy(episodes),
        next_values=torch.from_numpy(rng.normal(size=shape).astype(np.float32)),
        episode_returns=torch.zeros(0),
        episode_lengths=torch.zeros(0),
        episode_penalties=torch.zeros(0),
        episode_successes=torch.zeros(0),
        seconds=0.0,
    )


def played_turns(rollout):
    """The number of the prompt and the response of each turn, in the order of time."""
    return list(zip(rollout.prompt_index[rollout.mask].tolist(), rollout.turn_responses(), strict=True))


ORDERS = st.integers(0, 2**32)
SIZES = st.integers(1, 8)


def one_pass(batch, size, seed):
    """The minibatches of one shuffled pass."""
    order = np.random.default_rng(seed).permutation(len(batch.prompt_chains)).tolist()
    return list(batch.minibatches(size, order))


@cache
def ppo(whiten_advantages):
    module = PPO(whiten_advantages=whiten_advantages)
    module.policy.llm = SimpleNamespace(value_head=ValueHead(2, 2))
    module.update_features = lambda prompts: None
    return module


@inputs(60)
@given(rollouts(generates_text=False), SIZES, ORDERS, st.booleans())
def test_every_turn_is_in_one_minibatch_of_a_pass(rollout, size, seed, whiten_advantages):
    """With its prompt, choice and distribution; and the minibatches' losses average to the mean over the
    rollout."""
    batch, _ = ppo(whiten_advantages).prepare(rollout)
    distributions = {number: response.candidate_logprobs for number, response in played_turns(rollout)}
    parts = one_pass(batch, size, seed)
    assert sum(map(len, parts)) == len(batch) == int(rollout.mask.sum())
    prompts = [prompt for part in parts for prompt in part.prompts]
    assert len(set(prompts)) == len(prompts)
    found = []
    for part in parts:
        assert len(part.prompts) < size + max(map(len, batch.prompt_chains))
        columns = (part.prompt_index, part.choices, part.old_values, part.advantages, part.returns)
        for row, choice, value, advantage, target in zip(
            *(x.flatten().tolist() for x in columns), strict=True
        ):
            prompt = part.prompts[row]
            number = rollout.prompts.index(prompt)
            width = len(prompt.candidates)
            assert torch.equal(part.old_candidate_logprobs[row, :width], torch.tensor(distributions[number]))
            assert part.old_candidate_logprobs[row, width:].isneginf().all()
            assert value == float(rollout.prompt_values[number])
            found.append((number, choice, advantage, target))
    columns = (batch.prompt_index, batch.choices, batch.advantages, batch.returns)
    assert sorted(found) == sorted(zip(*(x.flatten().tolist() for x in columns), strict=True))
    assert sorted(turn[:2] for turn in found) == sorted(
        (number, response.choice) for number, response in played_turns(rollout)
    )
    losses = [float(part.returns.double().sin().sum() * part.loss_scale) for part in parts]
    assert sum(losses) / len(parts) == pytest.approx(float(batch.returns.double().sin().mean()), abs=1e-9)


def oracle_logprobs(prompt, token_ids, choice):
    """Numbers that depend on the prompt and on all of the response so far."""
    return [
        -((hash((prompt.token_ids, token_ids[: t + 1], choice)) % 997) / 400.0) for t in range(len(token_ids))
    ]


class OraclePolicy(GenerationPolicy):
    """A policy whose log-probabilities and values of a token depend on all before it, and on nothing else."""

    def __init__(self):
        super().__init__(max_new_tokens=LIMIT)
        self.llm = SimpleNamespace(device="cpu", reference=nullcontext, value_head=ValueHead(2, 2))
        self.evaluated = []

    def _evaluate_distinct(self, batch, *, entropy_gradient):
        rows = zip(batch.prompt_index.tolist(), batch.response_ids, batch.choices.tolist(), strict=True)
        responses = [(batch.prompts[number], token_ids, choice) for number, token_ids, choice in rows]
        self.evaluated.append(responses)
        logprobs = torch.zeros(batch.action_mask.shape, dtype=torch.float64)
        for row, response in zip(logprobs, responses, strict=True):
            computed = torch.tensor(oracle_logprobs(*response))[: len(row)]
            row[: len(computed)] = computed
        mask = batch.action_mask
        return PolicyOutput(logprobs * mask, logprobs.abs() * mask, logprobs * 2)


class GivenAdvantages(PolicyLearner):
    """An algorithm whose advantages are given, in the order of time."""

    def __init__(self, given_advantages, **kwargs):
        super().__init__(**kwargs)
        self.given_advantages = given_advantages

    def estimate_advantages(self, turns):
        return self.given_advantages


AGGREGATIONS = st.sampled_from(["sequence_mean", "token_mean", "max_length"])
LOSSES = st.builds(
    LossConfig,
    clip_low=st.just(0.2),
    clip_high=st.just(0.3),
    entropy_coef=st.sampled_from([0.0, 0.1]),
    loss_aggregation=AGGREGATIONS,
) | st.builds(LossConfig, clip_low=st.none(), clip_high=st.none(), loss_aggregation=AGGREGATIONS)


@inputs(60)
@given(rollouts(generates_text=True), SIZES, ORDERS, LOSSES, st.booleans(), st.booleans())
def test_the_losses_of_a_pass_average_to_the_rollouts(rollout, size, seed, loss, with_values, some_are_zero):
    """Token by token in a plain loop over the rollout; a response that several turns gave is evaluated
    once."""
    advantages = torch.from_numpy(np.random.default_rng(seed).normal(size=int(rollout.mask.sum())))
    if some_are_zero:
        advantages[::2] = 0.0
    returns = advantages + 1.0 if with_values else None
    policy = OraclePolicy()
    module = GivenAdvantages(Advantages(advantages, returns), policy=policy, loss=loss)
    batch, _ = module.prepare(rollout)
    parts = one_pass(batch, size, seed)
    assert sum(map(len, parts)) == len(batch) <= len(advantages)
    losses = [float(module.loss(part)[0]) for part in parts]
    for evaluated, part in zip(policy.evaluated, parts, strict=True):
        assert len(set(evaluated)) == len(evaluated) <= min(len(part), size)
    distinct = {response for evaluated in policy.evaluated for response in evaluated}
    assert len(distinct) == sum(map(len, policy.evaluated))
    expected = plain_loss(rollout, loss, advantages.float(), returns)
    assert sum(losses) / len(parts) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def plain_loss(rollout, config, advantages, returns):
    """Turn by turn in the order of time; the value before a turn counts once per turn."""
    policy_loss, value_part, tokens = 0.0, 0.0, 0
    turns = played_turns(rollout)
    for turn, (number, response) in enumerate(turns):
        new = torch.tensor(oracle_logprobs(rollout.prompts[number], response.token_ids, response.choice))
        old, advantage = torch.tensor(response.logprobs), advantages[turn].expand_as(new).to(new)
        if config.clip_low is None:
            losses = surrogate_loss(new, old, advantage)
        else:
            losses = ppo_clip_loss(new, old, advantage, clip_low=config.clip_low, clip_high=config.clip_high)
        losses = (losses - config.entropy_coef * new.abs())[torch.tensor(response.action_mask)]
        divisors = {"sequence_mean": len(losses), "token_mean": 1, "max_length": LIMIT}
        policy_loss += float(losses.sum()) / divisors[config.loss_aggregation]
        tokens += len(losses)
        if returns is not None:
            value_part += 0.5 * float(value_loss(2 * new[:1], returns[turn : turn + 1].to(new)))
    count = tokens if config.loss_aggregation == "token_mean" else len(turns)
    return policy_loss / count + value_part / len(turns)


@inputs(150)
@given(rollouts(generates_text=False))
def test_prompt_chains_partition_the_prompts(rollout):
    """Each that was acted on is in one chain, where each prompt extends the one before."""
    chains = prompt_chains(rollout)
    assert (
        sorted(number for chain in chains for number in chain)
        == rollout.prompt_index[rollout.mask].unique().tolist()
    )
    for chain in chains:
        token_ids = [rollout.prompts[number].token_ids for number in chain]
        assert all(
            len(after) > len(before) and after[: len(before)] == before
            for before, after in zip(token_ids, token_ids[1:], strict=False)
        )


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=12)


@inputs(120)
@given(PATHS, st.integers(1, 30), st.sampled_from(["padded", "prefix_cache", "tree"]))
def test_packed_sequences_come_back_and_see_nothing_else(paths, row_length, layout):
    """Each token sees those before it in its own sequence, in its row or in its row prefix, and no
    other."""
    packed = pack(
        paths, row_length=row_length, share_prefixes=layout != "padded", row_prefixes=layout == "tree"
    )
    count = sum(packed.lengths)
    assert packed.num_tokens == count == len(packed.token_ids) == int(packed.token_mask.sum())
    seen = [  # by each token
        sorted(
            [
                *prefix[: int(packed.row_prefix_lengths[first + place])],
                *(first + other for other in mask[place].nonzero()[0]),
            ]
        )
        for first, length, prefix, mask in zip(
            accumulate(packed.lengths, initial=0),
            packed.lengths,
            packed.row_prefixes,
            packed.attn_masks,
            strict=False,
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
        alone, alone_index = LLM.hidden_states([path], [1], row_length=row_length)
        torch.testing.assert_close(together[list(rows)], alone[list(alone_index[0])], rtol=1e-9, atol=1e-9)


@inputs(40)
@given(rollouts(generates_text=True), st.floats(0.01, 2))
def test_a_divergence_in_the_rewards_is_the_turns_own(rollout, kl_coef):
    """Each reward is lower by the divergence of the turn's chosen tokens, and those of idle turns stay."""
    policy = OraclePolicy()
    config = LossConfig(kl_coef=kl_coef, kl_in="reward")
    turns = turns_to_learn_from(rollout, config, lambda: nullcontext(policy))
    assert turns.batch.ref_logprobs is None
    assert torch.equal(turns.rewards[~rollout.mask], rollout.rewards[~rollout.mask])
    rewards = zip(turns.rewards[rollout.mask].tolist(), rollout.rewards[rollout.mask].tolist(), strict=True)
    for (number, response), (reward, before) in zip(played_turns(rollout), rewards, strict=True):
        mask = torch.tensor(response.action_mask)
        reference = oracle_logprobs(rollout.prompts[number], response.token_ids, response.choice)
        kl = kl_k1(torch.tensor(response.logprobs)[mask], torch.tensor(reference)[mask])
        assert reward == pytest.approx(before - kl_coef * float(kl.sum()), abs=1e-4)
