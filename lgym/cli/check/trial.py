"""A small rollout and one step of learning from it, and an estimate of a whole rollout's costs."""

import copy
import math
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch

from lgym.data import RolloutDataModule
from lgym.data.random_play import RandomPlay
from lgym.data.sizing import DEFAULT_ENVS
from lgym.models.prefix_sharing.kv_cache import kv_bytes_per_token
from lgym.models.prefix_sharing.packing import common_prefix_length
from lgym.modules import PolicyLearner
from lgym.rollout import Rollout
from lgym.types import Episode

SHARED_TURNS = 128  # of a small rollout, where prompts recur and are computed once
SEPARATE_TURNS = 64  # of a small rollout, where each costs a forward pass or a response of its own
SCORE_TURNS, SCORE_SECONDS = 1024, 6.0  # small rollouts are played, for the score, until one of them is over


@dataclass(frozen=True)
class Trial:
    """A small rollout and one step of learning from it.

    Attributes:
        rollout: the first of the small rollouts, which is also the one that is learned from.
        episodes: its episodes.
        returns: of all episodes played.
        parse_rate: fraction of all responses that named an action; `None` for a policy that chooses.
        cut: turns after which episodes were cut here and would not be in training; `None` where none were.
        step_seconds: duration of the step.
        step_size: turns in the minibatch if these are counted in responses, else distinct prompts.
        by_response: minibatches are counted in responses.
        play_bytes: peak memory before the step.
        step_bytes: peak memory with it.
        moment_bytes: memory that an optimizer with two moments of every trained parameter will add.
        kv_bytes: memory that the keys and values of a whole rollout's environments will add.
    """

    rollout: Rollout
    episodes: list[Episode]
    returns: list[float]
    parse_rate: float | None
    cut: int | None
    step_seconds: float
    step_size: int
    by_response: bool
    play_bytes: int
    step_bytes: int
    moment_bytes: int
    kv_bytes: float


def try_out(data: RolloutDataModule, module: PolicyLearner, play: RandomPlay) -> Trial:
    """Plays a few episodes with the training's own collector, and runs one minibatch's loss forward and
    backward.

    No weight changes, and no setting of `data`.
    """
    small = _shrink(data, module, play)
    training: Any = small.train_dataloader().dataset.play  # type: ignore[attr-defined]
    deadline = time.perf_counter() + SCORE_SECONDS
    with closing(training.collector) as collector, module.inference() as policy:
        play_more = partial(
            collector.play, policy, training.rngs["actions"], episodes=small.episodes_per_rollout
        )
        rollouts = [play_more()]
        episodes = list(collector.transcripts)
        while sum(map(_num_turns, rollouts)) < SCORE_TURNS and time.perf_counter() < deadline:
            rollouts.append(play_more())
    play_bytes = peak_bytes(module.device)
    batch, _ = module.prepare(rollouts[0])
    order = torch.randperm(len(batch.prompt_chains), generator=torch.Generator().manual_seed(0)).tolist()
    minibatch = next(batch.minibatches(small.minibatch_size, order)).to(module.device)
    step_seconds = _time_step(module, minibatch)
    parsed = torch.cat([rollout.parsed[rollout.mask] for rollout in rollouts])
    return Trial(
        rollout=rollouts[0],
        episodes=episodes,
        returns=torch.cat([rollout.episode_returns for rollout in rollouts]).tolist(),
        parse_rate=None if module.policy.scores_candidates else float(parsed.double().mean()),
        cut=None if small.max_episode_steps == data.max_episode_steps else small.max_episode_steps,
        step_seconds=step_seconds,
        step_size=len(minibatch.prompts) if batch.by_prompt else len(minibatch),
        by_response=not batch.by_prompt,
        play_bytes=play_bytes,
        step_bytes=peak_bytes(module.device),
        moment_bytes=2 * sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad),
        kv_bytes=kv_cache_bytes(data, module, rollouts[0], data.num_envs or DEFAULT_ENVS)
        - kv_cache_bytes(data, module, rollouts[0], small.num_envs or DEFAULT_ENVS),
    )


def kv_cache_bytes(data: RolloutDataModule, module: PolicyLearner, rollout: Rollout, num_envs: int) -> float:
    """Bytes of the keys and values of so many environments, each with a prompt and its response.

    They are copied when some of their rows go on. None are held where nothing is written, and all where
    conversations are kept.
    """
    kept = data.history != 0
    if not (module.policy.generates_text or kept):
        return 0.0
    causal_lm: Any = module.policy.llm.causal_lm
    per_token = kv_bytes_per_token(
        causal_lm.config.get_text_config(), causal_lm.get_input_embeddings().weight.dtype
    )
    prompt_length = fmean(len(prompt.token_ids) for prompt in rollout.prompts)
    bound = math.inf if kept else float(getattr(module.policy, "kv_cache_tokens", math.inf))
    return 2 * per_token * min(num_envs * (prompt_length + module.policy.max_new_tokens), bound)


def _shrink(data: RolloutDataModule, module: PolicyLearner, play: RandomPlay) -> RolloutDataModule:
    """A copy of `data` with rollouts of a few episodes, which have another limit if they are long."""
    budget = SEPARATE_TURNS if module.policy.generates_text or data.history != 0 else SHARED_TURNS
    length = fmean(play.lengths or [len(play.longest)])
    groups = max(1 if data.group_size > 3 else 4, int(budget / length) // data.group_size)
    if data.episodes_per_rollout is not None:
        groups = min(groups, data.episodes_per_rollout // data.group_size)
    episodes = groups * data.group_size
    small = copy.copy(data)
    small.turns_per_rollout = None
    small.episodes_per_rollout = small.log_episodes_per_rollout = episodes
    small.num_envs = min(data.num_envs or DEFAULT_ENVS, episodes)
    if episodes * length > 2 * budget:
        small.max_episode_steps = max(2, budget // episodes) * data.frame_skip
    return small


def _num_turns(rollout: Rollout) -> int:
    return int(rollout.mask.sum())


def _time_step(module: PolicyLearner, minibatch: Any) -> float:
    module.train()
    started = time.perf_counter()
    with torch.enable_grad(), module.trainer.precision_plugin.forward_context():
        loss, _ = module.loss(minibatch)
    if loss is not None:
        loss.backward()
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    seconds = time.perf_counter() - started
    module.zero_grad()
    module.eval()
    return seconds


def peak_bytes(device: torch.device) -> int:
    """Peak memory: of the GPU where the model is on one, else of the process; 0 where unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":  # has no `resource`
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def count_tokens(rollout: Rollout, context_length: int) -> dict[str, float]:
    """Tokens of a rollout's prompts and answers; an answer is a text, or the chosen candidate."""
    acted_on = [rollout.prompts[i] for i in rollout.prompt_index[rollout.mask].unique().tolist()]
    lengths = [len(prompt.token_ids) for prompt in acted_on]
    responses = rollout.turn_responses()
    return {
        "prompt_mean": sum(lengths) / len(lengths),
        "prompt_most": max(lengths),
        "shared": common_prefix_length([prompt.token_ids for prompt in acted_on]),
        "reply_mean": fmean(len(response.token_ids) for response in responses),
        "distinct_prompts": len(acted_on),
        "turns": _num_turns(rollout),
        "context_length": context_length,
        "cut_replies": fmean(not response.finished for response in responses),
    }


def estimate(
    data: RolloutDataModule, trial: Trial, play: RandomPlay, *, generates_text: bool
) -> dict[str, float]:
    """Extrapolates a whole rollout's turns, time and memory.

    Time to play grows with turns if the policy generates text, and else with distinct prompts, beside which
    the environments' own time grows with turns. Time to learn grows with the unit that a minibatch is counted
    in.
    """
    rollout = trial.rollout
    lengths = rollout.episode_lengths.tolist() if trial.cut is None else play.lengths or [len(play.longest)]
    turns = float(data.turns_per_rollout or (data.episodes_per_rollout or 0) * fmean(lengths))
    played = _num_turns(rollout)
    least = float(len(rollout.prompts)) if turns >= played else 1.0
    distinct = min(turns, max(least, play.distinct_after(turns)))
    if generates_text:
        play_seconds = rollout.seconds / played * turns
    else:
        seconds_per_env_turn = play.seconds / len(play.distinct)
        play_seconds = rollout.seconds / len(rollout.prompts) * distinct + seconds_per_env_turn * turns
    units = turns if trial.by_response else distinct
    growth = max(1.0, min(float(data.minibatch_size), units) / trial.step_size)
    return {
        "turns": turns,
        "distinct_prompts": distinct,
        "play_seconds": play_seconds,
        "learn_seconds": data.update_epochs * units * trial.step_seconds / trial.step_size,
        "memory_bytes": trial.play_bytes
        + max((trial.step_bytes - trial.play_bytes) * growth, trial.kv_bytes)
        + trial.moment_bytes,
    }
