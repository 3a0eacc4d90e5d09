"""Ways to find rewards that random play seldom meets: a longer stride, or a bonus for what is new."""

from collections import Counter
from collections.abc import Callable, Set
from contextlib import closing

import gymnasium
import numpy as np

from lgym.data.random_play import RandomPlay
from lgym.data.rollout.exploration_bonus import ExplorationBonus
from lgym.data.sizing import Choice

FRAME_SKIPS = (2, 4, 8, 16)
RARE, FREQUENT = 0.1, 0.4
"""Share of random episodes that do not have the commonest return: below `RARE` there is next to nothing to
learn from, and with `FREQUENT` there is enough."""

FEWEST_EPISODES = 10
"""Random episodes below which nothing is decided."""


def exploration_choices(
    frame_skip: int,
    open_names: Set[str],
    make_env: Callable[[int], gymnasium.Env],
    play: Callable[[int], RandomPlay],
) -> tuple[RandomPlay, list[Choice]]:
    """Choose `frame_skip` and `exploration_bonus` where they are not given and random returns are nearly all
    the same.

    Of a vector of real numbers, as physics gives, one step changes little, and an action that is repeated
    gets further; elsewhere each step may count, and a bonus pays for observations that are new.

    Args:
        frame_skip: where none is chosen.
        open_names: settings that are not given.
        make_env: makes its environment, with a frame skip.
        play: plays some random episodes in it.

    Returns:
        Random play as training will play, and the choices.
    """
    plays = {frame_skip: (random := play(frame_skip))}
    if len(random.returns) < FEWEST_EPISODES or differing(random) >= RARE:
        return random, []
    same = f"{1 - differing(random):.0%} of {len(random.returns)} random episodes had the same return"
    choices = []
    if "frame_skip" in open_names and changes_slowly(make_env):
        for skip in FRAME_SKIPS:
            plays[skip] = play(skip)
            if differing(plays[skip]) >= FREQUENT:
                break
        best = max(plays, key=lambda skip: (differing(plays[skip]), -skip))
        if best != frame_skip:
            random = play(best)
            why = f"{same}; so {1 - differing(random):.0%}"
            choices.append(Choice("frame_skip", best, why))
    if "exploration_bonus" in open_names and differing(random) < RARE:
        choices.append(Choice("exploration_bonus", ExplorationBonus(), same))
    return random, choices


def differing(play: RandomPlay) -> float:
    """Share of the episodes that do not have the commonest return."""
    returns = Counter(round(value, 6) for value in play.returns)
    return 1 - max(returns.values(), default=0) / max(1, len(play.returns))


def changes_slowly(make_env: Callable[[int], gymnasium.Env]) -> bool:
    """Check if observations are vectors of real numbers, and actions a choice."""
    with closing(make_env(1)) as env:
        space = env.observation_space
        return (
            isinstance(space, gymnasium.spaces.Box)
            and np.issubdtype(space.dtype, np.floating)
            and len(space.shape) == 1
            and isinstance(env.action_space, gymnasium.spaces.Discrete)
        )
