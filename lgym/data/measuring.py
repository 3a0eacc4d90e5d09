"""The settings that follow from the environment: random play decides what is not given."""

from collections.abc import Callable, Set
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import torch

from lgym.agents import GeneralAgent, TextAgent
from lgym.data.data_config import DataConfig
from lgym.data.discounts import discount_choices
from lgym.data.exploration_choice import exploration_choices
from lgym.data.graph_replay import GraphReplayBuffer
from lgym.data.imitation.every_action import EveryAction
from lgym.data.random_play import RandomPlay, play_at_random
from lgym.data.rollout.exploration_bonus import ExplorationBonus
from lgym.data.sizing import Choice, prompts_in, rollout_seconds, size_choices
from lgym.types import DISCOUNTS, Learner

DEFAULTS: dict[str, Any] = {
    "num_envs": None,
    "update_epochs": 4,
    "prompts_per_pass": None,
    "num_minibatches": None,
    "max_episode_steps": None,
    "frame_skip": 1,
    "exploration_bonus": None,
    "demonstrations": None,
    "replay": None,
    "episodes_per_rollout": None,
    "turns_per_rollout": None,
    **DISCOUNTS,
}
"""Settings that random play decides where they are not given, and their values where it is not asked."""

OBJECTS: dict[str, Callable[[], Any]] = {
    "exploration_bonus": ExplorationBonus,
    "demonstrations": lambda: [EveryAction()],
    "replay": GraphReplayBuffer,
}
"""Objects among them as random play decides for them; null is a choice of the user's."""

LEARNERS = {*DISCOUNTS, "demonstrations", "replay"}
"""Settings that count where the learner leaves them open."""

DEMONSTRATED = {"demonstrations", "frame_skip", "max_episode_steps", "resolution"}
"""Settings that show in demonstrations."""

MEASURED_TURNS, MEASURED_EPISODES, MEASURED_SECONDS = 4096, 40, 10.0
"""Random play that decides, and the time after which less has to do."""

MEETINGS = 4
"""Times that random play meets a prompt, on average, from which what follows it is known well enough."""


def replay_choices(play: RandomPlay) -> list[Choice]:
    """The replay buffer that carries values on through its transitions, where prompts come again."""
    turns, distinct = len(play.distinct), play.distinct[-1] if play.distinct else 0
    if not play.tries or turns < MEETINGS * distinct:
        return []
    return [
        Choice(
            "replay",
            GraphReplayBuffer(),
            f"{distinct:,} distinct prompts in {turns:,} turns: they come again",
        )
    ]


def measured_settings(
    settings: DataConfig,
    open_names: Set[str],
    make_env: Callable[..., gymnasium.Env],
    agent: TextAgent,
    learner: Learner,
    device: torch.device,
) -> list[Choice]:
    """Play at random, and decide what is not given, each with its reason.

    Args:
        settings: the run's, which do not say how much a rollout plays.
        open_names: those of `DEFAULTS` that are not given.
        make_env: makes an environment of training, with another `frame_skip` or `max_episode_steps`.
        agent: its words.
        learner: which learns from the rollouts.
        device: on which it computes.

    Returns:
        Settings of the data side and the learner by name, and `resolution` of a `GeneralAgent`.
    """

    def play(agent: TextAgent = agent, **changed: int) -> RandomPlay:
        return play_at_random(
            partial(make_env, **changed),
            agent,
            history=settings.history,
            episodes=MEASURED_EPISODES,
            turns=MEASURED_TURNS,
            seed=settings.seed,
            seconds=MEASURED_SECONDS,
        )

    random, choices = exploration_choices(open_names, make_env, play)
    most_prompts = prompts_in(rollout_seconds(settings, learner), random, learner, device)
    texts = len(random.questions)
    coarse = deepcopy(agent)
    resolution = {}
    if isinstance(coarse, GeneralAgent) and texts > most_prompts:
        resolution = coarse.choose_resolutions(random.observations, round(most_prompts))
        coarse.resolve(resolution)
    if resolution:
        changed = {c.name: c.value for c in choices if c.name in ("frame_skip", "max_episode_steps")}
        random = play(coarse, **changed)
        why = f"{len(random.questions):,} distinct texts in random play, {texts:,} without"
        choices.append(Choice("resolution", resolution, why))
    choices += [
        choice for choice in discount_choices(random) + replay_choices(random) if choice.name in open_names
    ]
    return choices + size_choices(settings, open_names, random, learner, most_prompts)
