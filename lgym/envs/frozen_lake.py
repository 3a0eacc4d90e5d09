"""Gymnasium's Frozen Lake: random maps, and exact values."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from lgym.envs import tabular
from lgym.types import ConfigError

STEPS = 100  # the time limit that the 4x4 lake is registered with

REFERENCE_MAPS = 200  # the number of first maps over which the reference returns of random lakes are means


class RandomFrozenLakeEnv(gymnasium.Env):
    """`FrozenLake-v1` on a map that is drawn anew at each reset, and that the observation holds.

    The map follows from the reset seed. Each map has a number: `first_map: 0, maps: 1000` to train on and
    `first_map: 1000, maps: 100` to evaluate on have no number in common; small lakes may still be alike.

    Args:
        size: rows and columns of the lake, 2 or more.
        p: the probability that a cell is ice, above 0.
        is_slippery: whether one slides to the sides in two of three cases.
        first_map: the number of the first map, 0 or more.
        maps: the number of maps, from the first one on.
        reward_schedule: the rewards of the goal, a hole and ice.
        render_mode: one of `FrozenLake-v1`'s.
    """

    metadata = FrozenLakeEnv.metadata

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = False,
        first_map: int = 0,
        maps: int = 2**31,
        reward_schedule: Sequence[float] = (1, 0, 0),
        render_mode: str | None = None,
    ) -> None:
        if size < 2 or not 0 < p <= 1 or first_map < 0 or maps < 1:
            raise ConfigError(
                f"size={size}, p={p}, first_map={first_map}, maps={maps}: give a size of 2 or more, 0 < p <= "
                "1, a first map of 0 or more and at least one map."
            )
        self.size = size
        self.p = p
        self.is_slippery = is_slippery
        self.first_map = first_map
        self.maps = maps
        self.reward_schedule: Any = tuple(reward_schedule)
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(4)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "position": gymnasium.spaces.Discrete(size * size),
                "map": gymnasium.spaces.Text(size * (size + 1) - 1, charset="SFHG\n"),
            }
        )
        self._lake = self.lake(first_map)

    def lake(self, number: int) -> FrozenLakeEnv:
        """The lake of a map's number."""
        return FrozenLakeEnv(
            desc=generate_random_map(self.size, self.p, seed=number),
            is_slippery=self.is_slippery,
            reward_schedule=self.reward_schedule,
            render_mode=self.render_mode,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.close()
        self._lake = self.lake(self.first_map + int(self.np_random.integers(self.maps)))
        self._lake.spec = self.spec
        self._lake.np_random = self.np_random
        position, info = self._lake.reset()
        return self._observation(position), info

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict]:
        position, *outcome = self._lake.step(action)
        return self._observation(position), *outcome

    def render(self) -> Any:
        return self._lake.render()

    def close(self) -> None:
        self._lake.close()

    def _observation(self, position: int) -> dict[str, Any]:
        return {"position": position, "map": "\n".join(map_rows(self._lake))}


gymnasium.register(
    "lgym/RandomFrozenLake-v0", "lgym.envs.frozen_lake:RandomFrozenLakeEnv", max_episode_steps=STEPS
)


def map_rows(lake: FrozenLakeEnv) -> list[str]:
    """The map as one text of S, F, H and G per row."""
    return [b"".join(row).decode() for row in np.asarray(lake.desc).tolist()]


def reference_returns(env: FrozenLakeEnv | RandomFrozenLakeEnv, steps: int = STEPS) -> dict[str, float]:
    """Mean returns, in at most `steps` steps, of any action and of the best.

    Those of random lakes are means over the first `REFERENCE_MAPS` of them.
    """
    if isinstance(env, RandomFrozenLakeEnv):
        numbers = range(env.first_map, env.first_map + min(env.maps, REFERENCE_MAPS))
        returns = [reference_returns(env.lake(number), steps) for number in numbers]
        return {name: float(np.mean([values[name] for values in returns])) for name in returns[0]}
    return tabular.reference_returns(env, steps)
