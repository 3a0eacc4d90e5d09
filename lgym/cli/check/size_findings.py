"""Findings about the size of a rollout: episodes that do not end in it, and the time that it takes."""

import math
from collections.abc import Iterator, Mapping

from lgym.cli.check.findings import Finding
from lgym.data import RolloutDataModule
from lgym.data.random_play import RandomPlay

LONG_ROLLOUT = 900.0  # seconds


def length_findings(data: RolloutDataModule, play: RandomPlay) -> Iterator[Finding]:
    """Rollouts that are shorter than every episode of random play."""
    if data.turns_per_rollout is None:
        return
    each = data.turns_per_rollout // data.num_envs
    shortest = min(play.lengths, default=len(play.longest))
    if each >= shortest:
        return
    length = math.ceil(play.mean_length)
    took = (
        f"the shortest of {len(play.lengths)} episodes, played at random, took {shortest}"
        if play.lengths
        else f"an episode, played at random, had not ended after {shortest}"
    )
    divisors = (n for n in range(data.num_envs, 0, -1) if data.turns_per_rollout % n == 0)
    fewer = next((n for n in divisors if data.turns_per_rollout // n >= length), None)
    longer = f"data.turns_per_rollout: {data.num_envs * length}"
    remedy = f"data.num_envs: {fewer} or {longer}" if fewer is not None else longer
    yield Finding(
        False,
        f"No episode ends within a rollout: data.turns_per_rollout: {data.turns_per_rollout} of "
        f"data.num_envs: {data.num_envs} environments are {each} turns of each, and {took}. Returns are "
        f"unknown for the first {math.ceil(shortest / each)} rollouts, and a reward at an episode's end is "
        f"seen once in as many. Set {remedy}.",
    )


def duration_findings(
    data: RolloutDataModule, costs: Mapping[str, float], max_new_tokens: int
) -> Iterator[Finding]:
    """Rollouts that take longer than a quarter of an hour, to play and to learn from.

    Args:
        data: the run's data module.
        costs: of `estimate`.
        max_new_tokens: of the policy; 0 where it does not write.
    """
    play, learn = costs["play_seconds"], costs["learn_seconds"]
    if play + learn <= LONG_ROLLOUT:
        return
    fraction = LONG_ROLLOUT / (play + learn)
    if data.turns_per_rollout is not None:
        turns = max(1, int(data.turns_per_rollout * fraction))
        envs = min(data.num_envs, turns)
        fewer = "" if envs == data.num_envs else f" with data.num_envs: {envs}"
        ways = [f"data.turns_per_rollout: {turns // envs * envs}{fewer}"]
    else:
        episodes = int((data.episodes_per_rollout or 1) * fraction)
        fitting = max(data.group_size, episodes // data.group_size * data.group_size)
        ways = [f"data.episodes_per_rollout: {fitting}"]
    amount, setting = data.update_epochs, "data.update_epochs"
    if data.replay is not None:
        amount, setting = data.replay.updates_per_rollout, "data.replay.updates_per_rollout"
    fitting_amount = int(amount * (LONG_ROLLOUT - play) / learn) if learn else 0
    if fitting_amount >= 1:
        ways.append(f"{setting}: {fitting_amount}")
    if max_new_tokens and play > learn:
        ways.append(f"the policy's max_new_tokens below its {max_new_tokens}")
    ways.append("a smaller model, or adapters in fewer blocks (model.llm.lora.last_blocks)")
    yield Finding(
        False,
        f"A rollout takes about {play / 60:.0f} minutes to play and {learn / 60:.0f} to learn from. What "
        f"brings it to a quarter of an hour: {', or '.join(ways)}.",
    )
