"""Estimates of a whole rollout's turns, time and memory, from a trial."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from lgym.cli.check.learning_trial import LearningTrial, Step
from lgym.cli.check.timed_policy import Call, Piece
from lgym.cli.check.trial import Trial
from lgym.data import RolloutDataModule
from lgym.data.random_play import RandomPlay
from lgym.models.prefix_sharing.kv_cache import kv_bytes_per_token
from lgym.modules import LLMLearner
from lgym.rollout import Rollout


def kv_cache_bytes(data: RolloutDataModule, module: LLMLearner, rollout: Rollout, num_envs: int) -> float:
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


class PlayRates(NamedTuple):
    """Seconds of a call of the policy, of a prompt in it, and of a turn beside that."""

    call: float
    prompt: float
    turn: float

    def seconds(self, turns: float, prompts: float, num_envs: int) -> float:
        """Time of so many turns with so many prompts to compute, a call at a time for all environments."""
        return self.call * min(prompts, turns / num_envs) + self.prompt * prompts + self.turn * turns


def play_rates(pieces: Sequence[Piece], turn_seconds: float) -> PlayRates:
    """Rates of playing, by least squares over the calls that had something to compute; the first rollout,
    which warms up, is left out if others had something to compute too.

    A turn takes no longer than in random play; whatever else was beside the calls, as its tokens are, belongs
    to a prompt.

    Args:
        pieces: small rollouts.
        turn_seconds: time of a turn of random play.
    """
    counted = pieces[1:] if any(call.prompts for piece in pieces[1:] for call in piece.calls) else pieces
    turns = sum(piece.turns for piece in counted)
    calls = [call for piece in counted for call in piece.calls]
    beside = max(0.0, sum(piece.seconds for piece in counted) - sum(call.seconds for call in calls))
    per_turn = min(beside / turns, turn_seconds)
    per_call, per_prompt = call_rates(calls)
    prompts = sum(call.prompts for call in calls)
    return PlayRates(per_call, per_prompt + (beside - per_turn * turns) / prompts, per_turn)


def call_rates(calls: Sequence[Call]) -> tuple[float, float]:
    """Seconds of a call and of a prompt in it, by least squares."""
    computed = np.array([(1.0, call.prompts, call.seconds) for call in calls if call.prompts])
    per_call, per_prompt = np.linalg.lstsq(computed[:, :2], computed[:, 2], rcond=None)[0].tolist()
    if len(computed) < 3 or per_call < 0 or per_prompt < 0:
        return 0.0, float(computed[:, 2].sum() / computed[:, 1].sum())
    return per_call, per_prompt


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
    """Extrapolates a whole rollout's turns, time and memory, of a run that is under way, and the time of an
    evaluation.

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
    logged = sum(len(episode.turns) for episode in data.logged)
    turns = float(logged or data.turns_per_rollout or (data.episodes_per_rollout or 0) * length)
    played = int(rollout.mask.sum())
    least = float(len(rollout.prompts)) if turns >= played else 1.0
    distinct = min(turns, max(least, play.distinct_after(turns)))
    first = play_rates(trial.pieces, play.turn_seconds)
    later = PlayRates(*call_rates(trial.repeated), first.turn) if trial.repeated else first
    # the prompts of a later rollout that none has had before
    new = min(1.0, max(0.0, play.distinct_after(2 * turns) / distinct - 1))
    rates = PlayRates(*(new * one + (1 - new) * other for one, other in zip(first, later, strict=True)))
    eval_turns = 2 * data.eval_episodes * length  # greedy and sampled
    play_seconds, eval_seconds = (
        rates.seconds(count, count if generates_text else prompts, data.num_envs)
        for count, prompts in ((turns, distinct), (eval_turns, play.distinct_after(eval_turns)))
    )
    whole = turns / played if learned.by_response else distinct / len(rollout.prompts)
    units = max(1.0, learned.units * whole)
    if data.prompts_per_pass is not None and not learned.by_response:
        units = min(units, data.prompts_per_pass)
    if data.replay is None:
        size = min(float(data.prompts_per_minibatch(math.ceil(units))), units)
        num_steps = data.update_epochs * units / size
    else:
        size = min(float(data.replay.minibatch_size), play.distinct_after(logged or data.replay.capacity))
        num_steps = data.replay.updates_per_rollout
    update_seconds = num_steps * step_seconds(learned.steps, size)
    step_bytes = (learned.step_bytes - trial.play_bytes) * max(1.0, size / learned.steps[-1].size)
    return {
        "turns": turns,
        "distinct_prompts": distinct,
        "play_seconds": 0.0 if logged else play_seconds,
        "learn_seconds": update_seconds + learned.prepare_seconds * (whole if learned.evaluates else 1.0),
        "evaluation_seconds": eval_seconds,
        "minibatch": size,
        "memory_bytes": trial.play_bytes + max(step_bytes, kv_bytes) + learned.moment_bytes,
    }
