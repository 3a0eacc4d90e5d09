"""Scripted experts to demonstrate with: each has `act(observation, info)`, a planner more of
`lgym.data.ExpertDemonstrations`."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from lgym.envs import blackjack, sokoban
from lgym.types import ConfigError


class Uniform:
    """Uniformly random actions: they show the form of an answer without favoring one.

    Args:
        actions: the number of actions of a `Discrete` space.
        seed: of the draws.
    """

    def __init__(self, actions: int, seed: int = 0) -> None:
        self._actions = actions
        self._rng = _generator(seed)

    def act(self, observation: Any, info: Mapping[str, Any]) -> int:
        return int(self._rng.integers(self._actions))


class GuessAmongLeft:
    """Random guesses of `lgym/GuessNumber-v0` among the numbers that the hints leave open.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = _generator(seed)

    def act(self, observation: Sequence[int], info: Mapping[str, Any]) -> str:
        lowest, highest = (int(part) for part in observation[:2])
        return str(self._rng.integers(lowest, highest + 1))


class Bisection:
    """The best guesses of `lgym/GuessNumber-v0`: the middle of what the hints leave open."""

    def act(self, observation: Sequence[int], info: Mapping[str, Any]) -> str:
        lowest, highest = (int(part) for part in observation[:2])
        return str((lowest + highest) // 2)


class BasicStrategy:
    """The optimal play of `Blackjack-v1`, with `sab` and without."""

    def __init__(self) -> None:
        self._action = dict(zip(blackjack.states(), blackjack.optimal_policy().tolist(), strict=True))

    def act(self, observation: blackjack.State, info: Mapping[str, Any]) -> int:
        player_sum, dealer_card, usable_ace = (int(part) for part in observation)
        return int(self._action[player_sum, dealer_card, usable_ace])


class DealersRule:
    """The dealer's own play of `Blackjack-v1`, hit below 17, except for a fraction of random actions.

    Undisturbed it is worth -0.079 a hand without `sab`. Disturbed, it shows that hands differ without showing
    how to play them.

    Args:
        noise: the fraction of actions that are drawn, 0 to 1.
        seed: of the draws.
    """

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        if not 0.0 <= noise <= 1.0:
            raise ConfigError(f"noise is {noise}; it must lie between 0 and 1.")
        self._noise = noise
        self._rng = _generator(seed)

    def act(self, observation: blackjack.State, info: Mapping[str, Any]) -> int:
        is_random, action = self._rng.random() < self._noise, int(self._rng.integers(2))
        return action if is_random else int(int(observation[0]) < 17)


class BalancePole:
    """A linear rule for `CartPole-v1` that lasts all 500 steps.

    It pushes the cart to where the pole is falling, and a little back to the middle.
    """

    def act(self, observation: Sequence[float], info: Mapping[str, Any]) -> int:
        position, velocity, angle, angular_velocity = (float(part) for part in observation)
        return int(angle + 0.3 * angular_velocity + 0.05 * position + 0.1 * velocity > 0)


class Walkthrough:
    """The way to win that the environment itself knows, `info["policy_commands"]`, as `lgym/TextWorld-v0`
    has it."""

    def act(self, observation: Any, info: Mapping[str, Any]) -> str | None:
        """The next command; `None` where no way leads on."""
        if "policy_commands" not in info:
            raise ConfigError(
                "Walkthrough follows policy_commands, and the info has none: take an environment that tells "
                "a way to win, such as lgym/TextWorld-v0."
            )
        return next(map(str, info["policy_commands"]), None)


class SokobanSolver:
    """A shortest way to solve each level of `lgym/Sokoban-v0`, by `lgym.envs.sokoban.solution`, from wherever
    its boxes are."""

    def begin(self, env: gymnasium.Env[Any, Any]) -> None:
        """Look at the level of an episode. Raises `ConfigError` for an environment that is no Sokoban."""
        if not isinstance(env.unwrapped, sokoban.SokobanEnv):
            raise ConfigError(
                f"SokobanSolver solves levels of lgym/Sokoban-v0, and {type(env.unwrapped).__name__} is none."
            )
        self._env = env.unwrapped

    def act(self, observation: Any, info: Mapping[str, Any]) -> int | None:
        """The next move; `None` where no way leads on, since a box is stuck."""
        moves = sokoban.solution(self._env.level)
        return moves[0] if moves else None


class BabyAIBot:
    """The planner of BabyAI's levels that comes with minigrid (Chevalier-Boisvert et al. 2018,
    arXiv:1810.08272, section 3.4). It sees what the agent sees, and keeps a map of it."""

    def begin(self, env: gymnasium.Env[Any, Any]) -> None:
        """Read the mission of an episode. Raises `ConfigError` for an environment that is no BabyAI level."""
        from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel  # an extra
        from minigrid.utils.baby_ai_bot import BabyAIBot as Planner

        level = getattr(env.unwrapped, "level", env.unwrapped)  # that which lgym/BabyAI-v0 has drawn
        if not isinstance(level, RoomGridLevel):
            raise ConfigError(
                f"BabyAIBot plans in BabyAI's levels, and {type(level).__name__} is none: take an id that "
                "begins with BabyAI-."
            )
        self._planner = Planner(level)
        self._played: Any = None

    def act(self, observation: Any, info: Mapping[str, Any]) -> int | None:
        """The next move; `None` where the planner knows none: where a box has been opened, what it takes for
        given does not hold, or it takes the mission for done."""
        from minigrid.utils.baby_ai_bot import DisappearedBoxError

        try:
            move = self._planner.replan(self._played)
        except (DisappearedBoxError, AssertionError):
            return None
        return None if move == self._planner.mission.unwrapped.actions.done else int(move)

    def played(self, action: Any) -> None:
        """Plan on from what was played in the last turn, which was perhaps another move."""
        self._played = self._planner.mission.unwrapped.actions(int(action))


def _generator(seed: int) -> np.random.Generator:
    """A generator apart from that of an environment which is reset with the same number."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
