"""Ways to find rewards that random play seldom meets: shorter episodes, an action repeated for several steps,
a bonus for what is new, and a start that favors no action."""

import math
from collections import Counter
from collections.abc import Callable, Set
from contextlib import closing
from functools import cache, partial

import gymnasium
import numpy as np

from lgym.data.imitation.every_action import EveryAction
from lgym.data.random_play import RandomPlay
from lgym.data.rollout.exploration_bonus import ExplorationBonus
from lgym.data.sizing import Choice
from lgym.envs.make import DEFAULT_TIME_LIMIT

TIME_LIMIT = 200
"""Environment steps of an episode where the environment has no limit, and random play finds no end."""

FRAME_SKIPS = (1, 2, 4, 8, 16)
LITTLE_CHANGE = 0.05
"""Change of observations in a turn, in standard deviations, below which one action says next to nothing."""

RARE, FREQUENT = 0.1, 0.3
"""Share of random episodes that do not have the commonest return, or that end by themselves: below `RARE`
there is next to nothing to learn from, and with `FREQUENT` there is enough."""

ALIKE = 0.2
"""Share of the commonest return of random episodes from which rewards are seldom enough to be missed."""

LONG_EPISODE = 10
"""Turns of an episode from which a model may never do what random play does now and then: it prefers some
actions in every turn."""

FEWEST_EPISODES = 10
"""Random episodes below which nothing is decided."""

FEW_REWARDS = 5
"""Different rewards of a turn up to which they name events, such as a step, a fall and the goal."""


def exploration_choices(
    open_names: Set[str], make_env: Callable[..., gymnasium.Env], play: Callable[..., RandomPlay]
) -> tuple[RandomPlay, list[Choice]]:
    """Choose `max_episode_steps`, `frame_skip`, `exploration_bonus` and `demonstrations` where they are not
    given and random play does not get anywhere.

    Where observations are a vector of real numbers, as of physics, one step may change little, and an action
    that is repeated gets further; elsewhere each step may count, and a bonus pays for observations that are
    new. Play that is no try at the game decides nothing.

    Args:
        open_names: settings that are not given.
        make_env: makes the environment, with another `frame_skip` or `max_episode_steps`.
        play: plays some random episodes in it.

    Returns:
        Random play as training will play, and the choices.
    """
    choices: list[Choice] = []
    changed: dict[str, int] = {}
    random = play()
    if not random.tries:
        return random, choices
    endless = random.truncated >= (1 - FREQUENT) * len(random.lengths)
    endless = endless and random.mean_length > DEFAULT_TIME_LIMIT / 2
    if "max_episode_steps" in open_names and endless and random.time_limit is None:
        why = f"no limit of its own, and random episodes have {random.mean_length:.0f} steps"
        choices.append(Choice("max_episode_steps", TIME_LIMIT, why))
        changed["max_episode_steps"] = TIME_LIMIT
        random = play(**changed)
    if len(random.returns) < FEWEST_EPISODES:
        return random, choices
    if "frame_skip" in open_names and changes_slowly(make_env):
        random, frame_skips = frame_skip_choice(random, partial(play, **changed))
        choices += frame_skips
    reason = why_explore(random)
    if reason:
        choices.append(Choice("exploration_bonus", ExplorationBonus(), reason))
    missed = reason or may_be_missed(random)
    if missed and nothing_to_lose(random) and suits_even_odds(random, make_env):
        choices.append(Choice("demonstrations", [EveryAction()], "to try all actions alike at first"))
    return random, [choice for choice in choices if choice.name in open_names]


def frame_skip_choice(random: RandomPlay, play: Callable[..., RandomPlay]) -> tuple[RandomPlay, list[Choice]]:
    """Random play with the frame skip that is chosen, and the choice, where that is more than 1."""

    @cache
    def with_skip(skip: int) -> RandomPlay:
        return random if skip == 1 else play(frame_skip=skip)

    skip, reason = skip_until_it_shows(with_skip)
    if differing(with_skip(skip)) < RARE:
        skip, reason = skip_until_it_pays(with_skip, skip)
    return with_skip(skip), [Choice("frame_skip", skip, reason)] if skip > 1 else []


def skip_until_it_shows(with_skip: Callable[[int], RandomPlay]) -> tuple[int, str]:
    """The least frame skip with which observations change by `LITTLE_CHANGE` in a turn, and the reason."""
    shows = (skip for skip in FRAME_SKIPS if change_per_turn(with_skip(skip)) >= LITTLE_CHANGE)
    best = next(shows, FRAME_SKIPS[-1])
    return best, (
        f"observations change by {change_per_turn(with_skip(1)):.0%} of their standard deviation in a step; "
        f"so by {change_per_turn(with_skip(best)):.0%} in a turn"
    )


def skip_until_it_pays(with_skip: Callable[[int], RandomPlay], fewest: int) -> tuple[int, str]:
    """The least frame skip with which `FREQUENT` episodes do not have the commonest return, or the one with
    which most do not; and the reason."""
    skips = [skip for skip in FRAME_SKIPS if skip >= fewest]
    pays = (skip for skip in skips if differing(with_skip(skip)) >= FREQUENT)
    best = next(pays, 0) or max(skips, key=lambda skip: (differing(with_skip(skip)), -skip))
    return best, f"{same_returns(with_skip(1))}; so {1 - differing(with_skip(best)):.0%}"


def change_per_turn(play: RandomPlay) -> float:
    """Change of a vector of numbers from one turn to the next, in standard deviations: the median over the
    numbers that change at all, of medians over turns. Infinite without observations, and where that is 0:
    what mostly stands still, and then jumps, is a board and no physics."""
    if len(play.observations) < 2:
        return math.inf
    seen = np.stack(play.observations)
    spread = seen.std(axis=0)
    changes = np.median(np.abs(np.diff(seen, axis=0)), axis=0)[spread > 0] / spread[spread > 0]
    return (float(np.median(changes)) if len(changes) else 0.0) or math.inf


def why_explore(play: RandomPlay) -> str:
    """The reason to pay for what is new; empty where there is none."""
    episodes = len(play.returns)
    if differing(play) < (FREQUENT if play.mean_length >= LONG_EPISODE else RARE):
        return same_returns(play)
    if play.truncated > (1 - RARE) * episodes and len(play.rewards) <= FEW_REWARDS:
        return f"the time limit ended {play.truncated / episodes:.0%} of {episodes} random episodes"
    return ""


def same_returns(play: RandomPlay) -> str:
    """The share of the commonest return, in words."""
    return f"{1 - differing(play):.0%} of {len(play.returns)} random episodes had the same return"


def differing(play: RandomPlay) -> float:
    """Share of the episodes that do not have the commonest return."""
    returns = Counter(round(value, 6) for value in play.returns)
    return 1 - max(returns.values(), default=0) / max(1, len(play.returns))


def may_be_missed(play: RandomPlay) -> bool:
    """Check if a model that prefers some actions may never be paid where random play is: in long episodes of
    which some return the same. In MiniGrid-Empty-5x5, where 42 % of random episodes reach the goal, a model
    that seldom says `forward` was not paid once in 27 rollouts."""
    return play.mean_length >= LONG_EPISODE and 1 - differing(play) >= ALIKE


def nothing_to_lose(play: RandomPlay) -> bool:
    """Check if random play's commonest return is its lowest. CliffWalking, begun with even odds, once learned
    to fear its cliff (-3,280 in the second rollout) and settled at -200 before it met the goal."""
    commonest, _ = Counter(round(value, 6) for value in play.returns).most_common(1)[0]
    return commonest == round(min(play.returns), 6)


def suits_even_odds(play: RandomPlay, make_env: Callable[[], gymnasium.Env]) -> bool:
    """Check if the model chooses between actions that are better tried alike than as it prefers them.

    Not texts, of which it may know better. Nor forces on a body, which random ones hold in its place:
    Acrobot, at -346 untrained, was at -363 after five rollouts with even odds, and at -191 without.
    """
    with closing(make_env()) as env:
        is_text = isinstance(env.action_space, gymnasium.spaces.Text)
        is_vector = is_real_vector(env.observation_space)
    return not (is_text or is_vector) and any(candidates for _, candidates in play.questions)


def changes_slowly(make_env: Callable[..., gymnasium.Env]) -> bool:
    """Check if observations are vectors of real numbers, and actions a choice."""
    with closing(make_env()) as env:
        is_choice = isinstance(env.action_space, gymnasium.spaces.Discrete)
        return is_choice and is_real_vector(env.observation_space)


def is_real_vector(space: gymnasium.Space) -> bool:
    """Check if a space is of vectors of real numbers, as physics has."""
    is_box = isinstance(space, gymnasium.spaces.Box)
    return is_box and np.issubdtype(space.dtype, np.floating) and len(space.shape or ()) == 1
