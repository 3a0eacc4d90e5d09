"""Estimates of a whole rollout's turns, time and memory, from a trial."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from lgym.cli.check.random_play import RandomPlay
from lgym.cli.check.trial import LearningTrial, Piece, Step, Trial
from lgym.data import RolloutDataModule
from lgym.models.prefix_sharing.kv_cache import kv_bytes_per_token
from lgym.modules import PolicyLearner
from lgym.rollout import Rollout


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


def play_rates(pieces: Sequence[Piece], env_seconds: float, *, generates_text: bool) -> tuple[float, float]:
    """Seconds of a distinct prompt, and of a turn beside that.

    Free text costs time at every turn: the rate of the largest rollout holds. A choice between candidates
    costs time where a prompt is new, and `env_seconds` or more at every turn; least squares over the
    rollouts behind the first, which warms up, tells them apart.
    """
    if generates_text:
        return 0.0, pieces[-1].seconds / pieces[-1].turns
    counts = np.array([(piece.new_prompts, piece.turns) for piece in pieces[1:] or pieces], dtype=float)
    seconds = np.array([piece.seconds for piece in pieces[1:] or pieces])
    if len(seconds) > 1:
        per_prompt, per_turn = np.linalg.lstsq(counts, seconds, rcond=None)[0].tolist()
        if per_prompt > 0 and per_turn >= env_seconds:
            return per_prompt, per_turn
    new, turns = counts.sum(0)
    return max(0.0, float(seconds.sum() - env_seconds * turns)) / max(1.0, new), env_seconds


def step_seconds(steps: Sequence[Step], size: float) -> float:
    """Time of a step of that size: on the line through the second and the last; in proportion to the last
    where these are alike. The first is a warm-up."""
    before, last = steps[min(1, len(steps) - 1)], steps[-1]
    if before.size == last.size:
        return last.seconds * size / last.size
    slope = max(0.0, (last.seconds - before.seconds) / (last.size - before.size))
    return last.seconds + slope * (size - last.size)


def estimate(
    data: RolloutDataModule,
    trial: Trial,
    learned: LearningTrial,
    play: RandomPlay,
    *,
    kv_bytes: float,
    generates_text: bool,
) -> dict[str, float]:
    """Extrapolates a whole rollout's turns, time and memory, and the time of an evaluation.

    Args:
        data: the run's data module.
        trial: small rollouts.
        learned: steps of learning from one of them.
        play: random play, which says how the number of distinct prompts grows.
        kv_bytes: memory that the keys and values of the run's environments add.
        generates_text: the policy answers in free text.
    """
    rollout = trial.rollout
    length = fmean(rollout.episode_lengths.tolist()) if trial.cut is None else play.mean_length
    turns = float(data.turns_per_rollout or (data.episodes_per_rollout or 0) * length)
    played = int(rollout.mask.sum())
    least = float(len(rollout.prompts)) if turns >= played else 1.0
    distinct = min(turns, max(least, play.distinct_after(turns)))
    env_seconds = play.seconds / len(play.distinct)
    per_prompt, per_turn = play_rates(trial.pieces, env_seconds, generates_text=generates_text)
    eval_turns = data.eval_episodes * length
    eval_seconds = per_turn * 2 * eval_turns + per_prompt * min(
        2 * eval_turns, play.distinct_after(2 * eval_turns)
    )
    whole = turns / played if learned.by_response else distinct / len(rollout.prompts)
    units = max(1.0, learned.units * whole)
    size = min(float(data.minibatch_size), units)
    update = data.update_epochs * units / size * step_seconds(learned.steps, size)
    growth = max(1.0, size / learned.steps[-1].size)
    return {
        "turns": turns,
        "distinct_prompts": distinct,
        "play_seconds": per_prompt * distinct + per_turn * turns,
        "learn_seconds": update + learned.prepare_seconds * turns / played,
        "evaluation_seconds": eval_seconds,
        "memory_bytes": trial.play_bytes
        + max((learned.step_bytes - trial.play_bytes) * growth, kv_bytes)
        + learned.moment_bytes,
    }
