"""Small rollouts, of sizes that the time allows."""

import copy
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from lgym.cli.check.learning_trial import peak_bytes
from lgym.cli.check.time_budget import TimeBudget
from lgym.cli.check.timed_policy import Call, Piece, TimedPolicy
from lgym.data import RolloutDataModule
from lgym.data.random_play import RandomPlay
from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.seeds import first_reset_seed, stream
from lgym.models.prefix_sharing.packing import common_prefix_length
from lgym.modules import LLMLearner
from lgym.rollout import Prompt, Response, Rollout
from lgym.terminal import bar
from lgym.types import Episode

SHOWN_RESPONSES = 3
SHARED_TURNS = 128  # of the first rollout, where prompts recur and are computed once
SEPARATE_TURNS = 64  # of the first rollout, where each costs a forward pass or a response of its own
SCORE_TURNS = 4096  # rollouts of twice the size follow until they are over these, or over these seconds:
SHARED_SECONDS, SEPARATE_SECONDS = 2.5, 6.0
ASKED_TOGETHER = 16  # prompts that are timed before play
MOST_ENVS, MOST_WORKERS = 128, 8
MAKING_FRACTION = 0.1  # of the time, for making environments
PLAY_UNTIL = 0.55  # of the time


class FirstAnswers(NamedTuple):
    """The policy's answers to the first prompt of training, and the seconds that each took alone."""

    prompt: Prompt
    responses: list[Response]
    value: float
    seconds: float


@dataclass(frozen=True)
class Trial:
    """Small rollouts, and steps of learning from the last of them.

    Attributes:
        rollout: the last and largest of the small rollouts, which is learned from.
        episodes: of the first, as a person reads them.
        returns: of all episodes played.
        responses: all responses, with False where the agent could read no action in them.
        pieces: the rollouts' sizes and times.
        cut: turns after which episodes were cut here and would not be in training; `None` where none were.
        repeated: calls with the same prompts after all of that, as in a later rollout, which keeps what comes
            out of frozen blocks; the last of them with all prompts at once. Of a policy that generates text,
            or that sees a history, none.
        play_bytes: peak memory behind them.
    """

    rollout: Rollout
    episodes: list[Episode]
    returns: list[float]
    responses: list[tuple[Response, bool]]
    pieces: list[Piece]
    cut: int | None
    repeated: list[Call]
    play_bytes: int

    @property
    def parse_rate(self) -> float:
        """Fraction of the responses that named an action."""
        return fmean(parsed for _, parsed in self.responses)


def first_answers(data: RolloutDataModule, module: LLMLearner) -> FirstAnswers:
    """Asks the policy at the first observation of training."""
    env = data.make_env()
    runner = EnvRunner(env, data.episode_prompts("fit"))
    rng = np.random.default_rng(stream(data.seed, "fit", "actions"))
    with closing(runner), module.inference() as policy:
        runner.reset(first_reset_seed(data.seed, "fit", 0, 1))
        prompts = [runner.prompt] * (SHOWN_RESPONSES if policy.generates_text else 1)
        started = time.perf_counter()
        responses, values = policy.act(prompts, rng, keep_kv_cache=False)
    seconds = (time.perf_counter() - started) / len(prompts)
    return FirstAnswers(runner.prompt, responses, float(values[0]), seconds)


def seconds_together(data: RolloutDataModule, module: LLMLearner, play: RandomPlay) -> float:
    """Seconds of each of some prompts that random play met last, asked for together, as in a rollout where
    prompts are shared. A process's first prompt alone takes several times as long."""
    builder = data.prompt_builder("fit")
    prompts = [builder.prompt(*question) for question in list(play.questions)[-ASKED_TOGETHER:]]
    with module.inference() as policy:
        started = time.perf_counter()
        policy.values(prompts)
        return (time.perf_counter() - started) / len(prompts)


def try_out(
    data: RolloutDataModule,
    module: LLMLearner,
    play: RandomPlay,
    answers: FirstAnswers,
    budget: TimeBudget,
) -> Trial:
    """Plays episodes with the training's own collector: a few that show how fast it is, then as many as there
    is time for. No weight changes, and no setting of `data`.

    Args:
        data: the run's data module.
        module: the run's module, with its model.
        play: tells how long episodes are.
        answers: to the first prompt of training.
        budget: time of the whole check.
    """
    shared = _shares_prompts(data, module)
    seconds = budget.until(PLAY_UNTIL, at_most=SHARED_SECONDS if shared else SEPARATE_SECONDS)
    deadline = time.perf_counter() + seconds
    turn_seconds = seconds_together(data, module, play) if shared else answers.seconds
    turn_seconds += play.seconds / len(play.distinct)
    first = _shrink(data, module, play, seconds / turn_seconds / 4, budget)
    pieces: list[Piece] = []
    _play_episodes(first, module, pieces, deadline=0.0)
    turns_left = (deadline - time.perf_counter()) * pieces[0].turns / pieces[0].seconds
    small = _shrink(data, module, play, max(turns_left / 2, pieces[0].turns / 2), budget)
    rollouts, transcripts = _play_episodes(small, module, pieces, deadline)
    return Trial(
        rollout=rollouts[-1],
        episodes=transcripts,
        returns=torch.cat([rollout.episode_returns for rollout in rollouts]).tolist(),
        responses=[
            answer
            for rollout in rollouts
            for answer in zip(rollout.turn_responses(), rollout.parsed[rollout.mask].tolist(), strict=True)
        ],
        pieces=pieces,
        cut=None if small.max_episode_steps == data.max_episode_steps else small.max_episode_steps,
        repeated=_repeat(data, module, pieces),
        play_bytes=peak_bytes(module.device),
    )


def _shares_prompts(data: RolloutDataModule, module: LLMLearner) -> bool:
    return not module.policy.generates_text and data.history == 0


def _play_episodes(
    small: RolloutDataModule, module: LLMLearner, pieces: list[Piece], deadline: float
) -> tuple[list[Rollout], list[Episode]]:
    """Plays the episodes of a rollout, then twice as many, and so on, as long as there is time; adds sizes
    and times to `pieces`. Returns the rollouts, and the first one's episodes as a person reads them."""
    training: Any = small.train_dataloader().dataset.play  # type: ignore[attr-defined]
    count = small.episodes_per_rollout or 1
    rollouts: list[Rollout] = []
    transcripts: list[Episode] = []
    with closing(training.collector) as collector, module.inference() as policy, bar("playing") as show:
        timed: Any = TimedPolicy(policy)
        while True:
            rollout = collector.play(
                timed,
                training.rngs["actions"],
                episodes=count,
                progress=lambda so_far: show(so_far.done, so_far.total),
            )
            transcripts = transcripts or list(collector.transcripts)
            rollouts.append(rollout)
            pieces.append(Piece(int(rollout.mask.sum()), timed.calls, rollout.seconds))
            timed.calls = []
            over = time.perf_counter() + 2 * rollout.seconds > deadline
            if over or sum(int(played.mask.sum()) for played in rollouts) >= SCORE_TURNS:
                return rollouts, transcripts
            count *= 2


def _repeat(data: RolloutDataModule, module: LLMLearner, pieces: Sequence[Piece]) -> list[Call]:
    """The prompts of the last rollout that met new ones once more, call by call and then all at once."""
    asked = [[call.new for call in piece.calls if call.new] for piece in pieces]
    if not _shares_prompts(data, module) or not any(asked):
        return []
    last = next(prompts for prompts in reversed(asked) if prompts)
    repeated = []
    for session in (last, [tuple(prompt for prompts in last for prompt in prompts)]):
        with module.inference() as policy:
            for prompts in session:
                started = time.perf_counter()
                policy.values(prompts)
                repeated.append(Call(len(prompts), time.perf_counter() - started, prompts))
    return repeated


def _shrink(
    data: RolloutDataModule, module: LLMLearner, play: RandomPlay, turns: float, budget: TimeBudget
) -> RolloutDataModule:
    """A copy of `data` with rollouts of a few episodes, of `turns` at most, which have another limit if they
    are long; and with no more environments than can be made in the time."""
    usual = SHARED_TURNS if _shares_prompts(data, module) else SEPARATE_TURNS
    most_turns = max(1, int(min(usual, turns)))
    groups = max(1 if data.group_size > 3 else 4, int(most_turns / play.mean_length) // data.group_size)
    if data.episodes_per_rollout is not None:
        groups = min(groups, data.episodes_per_rollout // data.group_size)
    episodes = groups * data.group_size
    makeable = MAKING_FRACTION * budget.seconds / max(play.making_seconds, 1e-6)
    most_envs = max(1, int(min(makeable, MOST_WORKERS if data.subprocess_envs else MOST_ENVS)))
    small = copy.copy(data)
    small.turns_per_rollout = None
    small.logged = []  # what evaluations play
    small.episodes_per_rollout = small.log_episodes_per_rollout = episodes
    small.num_envs = min(data.num_envs, most_envs)
    if episodes * play.mean_length > 2 * most_turns:
        small.max_episode_steps = max(1, most_turns // episodes) * data.frame_skip
    return small


def count_tokens(rollout: Rollout, context_length: int) -> dict[str, float]:
    """Tokens of a rollout's prompts and answers; an answer is a text, or the chosen candidate."""
    acted_on = [rollout.prompts[i] for i in rollout.prompt_index[rollout.mask].unique().tolist()]
    lengths = [len(prompt.token_ids) for prompt in acted_on]
    responses = rollout.turn_responses()
    return {
        "prompt_mean": sum(lengths) / len(lengths),
        "prompt_most": max(lengths),
        "shared": common_prefix_length([prompt.token_ids for prompt in acted_on]),
        "response_mean": fmean(len(response.token_ids) for response in responses),
        "distinct_prompts": len(acted_on),
        "turns": int(rollout.mask.sum()),
        "context_length": context_length,
        "cut_responses": fmean(not response.finished for response in responses),
    }
