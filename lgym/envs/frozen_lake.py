"""Gymnasium's Frozen Lake: a new map every episode, and what play is worth exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from lgym.envs.tabular import optimal_value, policy_value, tables
from lgym.types import ConfigError

STEPS = 100
"""The time limit that the 4x4 lake is registered with."""

MAPS_FOR_BASELINES = 200
"""Maps over which the baselines of random lakes are means, the first ones."""


class RandomFrozenLakeEnv(gymnasium.Env):
    """`FrozenLake-v1` on a map that is drawn anew at each reset, and that the observation holds.

    The map follows from the reset seed. Every one is a number's: `first_map: 0, maps: 1000` to train on and
    `first_map: 1000, maps: 100` to evaluate on have no number in common; small lakes may still be alike.
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
        """
        Args:
            size: rows and columns of the lake, 2 or more.
            p: the probability that a field is ice, above 0.
            is_slippery: whether one slides to the sides in two of three cases.
            first_map: the number of the first map, 0 or more.
            maps: how many maps there are, from the first one on.
            reward_schedule: what the goal, a hole and ice pay.
            render_mode: one of `FrozenLake-v1`'s.
        """
        if size < 2 or not 0 < p <= 1 or first_map < 0 or maps < 1:
            raise ConfigError(
                f"size={size}, p={p}, first_map={first_map}, maps={maps}: give a size of 2 or more, 0 < p <= 1, a first map "
                "of 0 or more and at least one map."
            )
        self.size, self.p, self.is_slippery = size, p, is_slippery
        self.first_map, self.maps = first_map, maps
        self.reward_schedule, self.render_mode = tuple(reward_schedule), render_mode
        self.action_space = gymnasium.spaces.Discrete(4)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "position": gymnasium.spaces.Discrete(size * size),
                "map": gymnasium.spaces.Text(size * (size + 1) - 1, charset="SFHG\n"),
            }
        )
        self._lake: FrozenLakeEnv | None = None
        self._rows = ""

    def lake(self, number: int) -> FrozenLakeEnv:
        """The lake of a map's number."""
        rows = generate_random_map(self.size, self.p, seed=number)
        schedule: Any = self.reward_schedule
        return FrozenLakeEnv(desc=rows, is_slippery=self.is_slippery, reward_schedule=schedule, render_mode=self.render_mode)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.close()
        self._lake = self.lake(self.first_map + int(self.np_random.integers(self.maps)))
        self._lake.spec, self._lake.np_random = self.spec, self.np_random
        self._rows = "\n".join(map_rows(self._lake))
        position, info = self._lake.reset()
        return self._seen(position), info

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict]:
        assert self._lake is not None, "reset before the first step"
        position, reward, terminated, truncated, info = self._lake.step(action)
        return self._seen(position), reward, terminated, truncated, info

    def render(self) -> Any:
        assert self._lake is not None, "reset before rendering"
        return self._lake.render()

    def close(self) -> None:
        if self._lake is not None:
            self._lake.close()
            self._lake = None

    def _seen(self, position: int) -> dict[str, Any]:
        return {"position": position, "map": self._rows}


gymnasium.register("lgym/RandomFrozenLake-v0", "lgym.envs.frozen_lake:RandomFrozenLakeEnv", max_episode_steps=STEPS)


def map_rows(lake: FrozenLakeEnv) -> list[str]:
    """A text a row of S, F, H and G."""
    return [b"".join(row).decode() for row in np.asarray(lake.desc).tolist()]


def baselines(env: FrozenLakeEnv | RandomFrozenLakeEnv, steps: int = STEPS) -> dict[str, float]:
    """Mean returns, in at most `steps` steps, of any action and of the best; of random lakes, means over
    `MAPS_FOR_BASELINES` of them."""
    if isinstance(env, RandomFrozenLakeEnv):
        count = min(env.maps, MAPS_FOR_BASELINES)
        known = [baselines(env.lake(env.first_map + number), steps) for number in range(count)]
        return {name: float(np.mean([values[name] for values in known])) for name in known[0]}
    lake = tables(env)
    uniform = np.full(lake.rewards.shape, 1 / lake.rewards.shape[1])
    return {"random": policy_value(lake, uniform, steps), "optimal": optimal_value(lake, steps)}
