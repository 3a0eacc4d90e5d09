"""A small rollout and one step of learning from it, as the run's own would be, and what that says of a whole one."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lgym.batch import Rollout
from lgym.cli.check.random_play import RandomPlay
from lgym.data import RolloutDataModule
from lgym.models.limits import kv_bytes_per_token
from lgym.modules import PolicyLearner
from lgym.types import Episode

TURNS_ASKED_ONCE = 128
"""Turns of a small rollout where prompts recur and are computed once."""

TURNS_EACH_ITS_OWN = 64
"""Turns of a small rollout where each costs a forward pass or a reply of its own."""

MORE_TURNS, MORE_SECONDS = 1024, 6.0
"""Small rollouts are played, for the score, until one of them is over."""


@dataclass(frozen=True)
class Trial:
    """What was played and learned."""

    rollout: Rollout
    """The first of the small ones, which is also what is learned from."""

    episodes: list[Episode]
    """Its episodes."""

    returns: list[float]
    """Of all episodes played."""

    parse_rate: float
    """The share of all replies that named an action; 1 where the policy chooses."""

    cut: int | None
    """Turns after which episodes were cut off here and would not be in training."""

    step_seconds: float
    step_size: int
    """Turns in the minibatch where these are counted in replies, else distinct prompts."""

    by_reply: bool
    play_bytes: int
    """Peak memory before the step."""

    step_bytes: int
    """Peak memory with it."""

    moment_bytes: int
    """What an optimizer with two moments of every trained parameter will add."""

    kv_bytes_per_turn: float
    """What the keys and values of a prompt and its reply take, where they are held; 0 where nothing is written."""

    kv_bytes_bound: float
    """How much of them is held at once; infinite where all conversations are kept."""

    environments: int
    """That played together."""


def try_out(data: RolloutDataModule, module: PolicyLearner, play: RandomPlay) -> Trial:
    """Plays a few whole episodes with the training's own collector, and runs the loss of one minibatch forward and backward.

    No weight changes. The data module is left set to the small rollout.
    """
    cut = _shrink(data, module, play)
    dataset: Any = data.train_dataloader().dataset
    started = time.perf_counter()
    try:
        with module.acting() as policy:
            rollout = dataset.collector.play(policy, dataset.action_rng, episodes=data.episodes_per_rollout)
            episodes = list(dataset.collector.transcripts)
            played = [rollout]
            while _turns(played) < MORE_TURNS and time.perf_counter() - started < MORE_SECONDS:
                played.append(dataset.collector.play(policy, dataset.action_rng, episodes=data.episodes_per_rollout))
    finally:
        dataset.collector.close()
    before = peak_bytes(module.device)
    batch = module.prepare(rollout)
    order = torch.randperm(len(batch.bundles), generator=torch.Generator().manual_seed(0)).tolist()
    minibatch = next(batch.minibatches(data.minibatch_size, order)).to(module.device)
    seconds = _step(module, minibatch)
    by_reply = bool(getattr(batch, "by_reply", False))
    trained = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    return Trial(
        rollout,
        episodes,
        [paid for part in played for paid in part.episode_returns.tolist()],
        sum(int(part.parsed[part.mask].sum()) for part in played) / _turns(played),
        cut,
        seconds,
        len(minibatch) if by_reply else len(minibatch.contexts),
        by_reply,
        before,
        peak_bytes(module.device),
        2 * trained,
        *_kv_bytes(module, rollout, kept=data.history != 0),
        data.num_envs,
    )


def _kv_bytes(module: PolicyLearner, rollout: Rollout, *, kept: bool) -> tuple[float, float]:
    """Bytes of the keys and values of a prompt, with all candidates or its reply, and how many are held at once."""
    if not (module.speaks or kept):
        return 0.0, math.inf
    llm: Any = module.policy.llm
    dtype = llm.causal_lm.get_input_embeddings().weight.dtype
    each = kv_bytes_per_token(llm.causal_lm.config.get_text_config(), dtype)
    prompts = [len(context.prompt_ids) for context in rollout.contexts]
    bound = math.inf if kept else float(getattr(module.policy, "kv_cache_tokens", math.inf))
    return each * (_mean(prompts) + module.policy.max_new_tokens), each * bound


def _shrink(data: RolloutDataModule, module: PolicyLearner, play: RandomPlay) -> int | None:
    """Makes rollouts a few episodes; returns after how many turns they are now cut off, if they are."""
    budget = TURNS_EACH_ITS_OWN if module.speaks or data.history != 0 else TURNS_ASKED_ONCE
    length = _mean(play.lengths) if play.lengths else len(play.longest)
    groups = max(1 if data.group_size > 3 else 4, int(budget / length) // data.group_size)
    if data.episodes_per_rollout is not None:
        groups = min(groups, data.episodes_per_rollout // data.group_size)
    episodes = groups * data.group_size
    data.episodes_per_rollout, data.turns_per_rollout = episodes, None
    data.num_envs = min(data.num_envs, episodes)
    data.log_episodes_per_rollout = episodes
    if episodes * length <= 2 * budget:
        return None
    data.max_episode_steps = max(2, budget // episodes)
    return data.max_episode_steps


def _turns(played: Sequence[Rollout]) -> int:
    return sum(int(rollout.mask.sum()) for rollout in played)


def _step(module: PolicyLearner, minibatch: Any) -> float:
    """Seconds of a loss, forward and backward."""
    module.train()
    started = time.perf_counter()
    with torch.enable_grad(), module.trainer.precision_plugin.forward_context():
        result = module.loss(minibatch)
    if result is not None:
        result[0].backward()
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    seconds = time.perf_counter() - started
    module.zero_grad()
    module.eval()
    return seconds


def peak_bytes(device: torch.device) -> int:
    """The most memory there was in use: of the GPU where the model is on one, else of the process; 0 where unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":  # has no `resource`
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class Estimate:
    """Of a whole rollout; everything but what it was measured on is extrapolated."""

    turns: float
    distinct_prompts: float
    play_seconds: float
    learn_seconds: float
    memory_bytes: float


@dataclass(frozen=True)
class Amounts:
    """What a rollout is configured to be, noted before it is made small."""

    episodes: int | None
    turns: int | None
    update_epochs: int
    minibatch_size: int
    environments: int

    @classmethod
    def of(cls, data: RolloutDataModule) -> Amounts:
        sizes = data.update_epochs, data.minibatch_size, data.num_envs
        return cls(data.episodes_per_rollout, data.turns_per_rollout, *sizes)


def estimate(amounts: Amounts, trial: Trial, play: RandomPlay, *, speaks: bool) -> Estimate:
    """A whole rollout's turns, time and memory.

    Time to play grows with turns where the policy speaks, and else with distinct prompts, beside which the environments'
    own time grows with turns. Time to learn grows with what a minibatch is counted in.
    """
    rollout = trial.rollout
    lengths = rollout.episode_lengths.tolist() if trial.cut is None else play.lengths or [len(play.longest)]
    turns = float(amounts.turns or (amounts.episodes or 0) * _mean(lengths))
    played = int(rollout.mask.sum())
    distinct = max(play.distinct_after(turns), float(len(rollout.contexts)) if turns >= played else 1.0)
    distinct = min(distinct, turns)
    if speaks:
        play_seconds = rollout.play_seconds / played * turns
    else:
        play_seconds = rollout.play_seconds / len(rollout.contexts) * distinct
        play_seconds += play.seconds / len(play.distinct) * turns
    units = turns if trial.by_reply else distinct
    size = min(float(amounts.minibatch_size), units)
    activations = (trial.step_bytes - trial.play_bytes) * max(1.0, size / trial.step_size)
    return Estimate(
        turns,
        distinct,
        play_seconds,
        amounts.update_epochs * units * trial.step_seconds / trial.step_size,
        trial.play_bytes + max(activations, _held(amounts, trial)) + trial.moment_bytes,
    )


def _held(amounts: Amounts, trial: Trial) -> float:
    """Bytes of keys and values beyond those of the small rollout; twice, since they are copied when rows of them go on."""
    few, many = (
        min(environments * trial.kv_bytes_per_turn, trial.kv_bytes_bound)
        for environments in (trial.environments, amounts.environments)
    )
    return 2 * (many - few)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
