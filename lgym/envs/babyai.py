"""BabyAI's levels (Chevalier-Boisvert et al. 2018, arXiv:1810.08272), mixed, and with missions held out."""

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.utils import EzPickle

from lgym.types import ConfigError

OWN_LEVEL = "lgym/BabyAI-PickupThenGoToLocal-v0"
MOST_DRAWS = 1000  # missions that are drawn until one is of those asked for


class BabyAIEnv(gymnasium.Env[Any, Any], EzPickle):
    """Levels of BabyAI from minigrid, one drawn at each reset, with a mission of those that are asked for.

    Train `without` some objects and evaluate on `only` these, to see what holds of objects that no mission
    was ever about: `without: [red ball, grey key]`. (They still lie around.) Observations, actions and
    rewards are the level's: 1 - 0.9 steps / limit for a mission that is fulfilled, else 0. `info["success"]`
    says whether it was.

    Args:
        levels: the id of a level, such as BabyAI-GoToLocal-v0, or of several, each drawn as often:
            minigrid's, and lgym/BabyAI-PickupThenGoToLocal-v0 (`lgym.envs.babyai_levels`).
        only: a part of missions, or several, of which a mission has to have one; empty for any mission.
        without: a part of missions, or several, of which a mission may have none.
        render_mode: one of minigrid's.

    Raises:
        ValueError: if minigrid is not installed, or there is no such level. At a reset, if no mission is as
            asked.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}

    def __init__(
        self,
        levels: str | Sequence[str] = "BabyAI-GoToLocal-v0",
        only: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        EzPickle.__init__(self, levels, only, without, render_mode)
        try:
            import minigrid  # noqa: F401  registers the levels
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"lgym/BabyAI-v0 needs a package that this Python does not have ({error}). "
                'Install it: pip install "lgym[minigrid]".'
            ) from error
        ids, self.only, self.without = (
            (given,) if isinstance(given, str) else tuple(given) for given in (levels, only, without)
        )
        known = sorted(name for name in gymnasium.registry if name.startswith(("BabyAI-", OWN_LEVEL)))
        unknown = [name for name in ids if name not in known]
        if unknown or not ids:
            raise ConfigError(
                f"levels is {levels!r}, and there is no such level. There are {', '.join(known)}."
            )
        self._levels = [
            gymnasium.make(name, render_mode=render_mode, disable_env_checker=True).unwrapped for name in ids
        ]
        self.render_mode = render_mode
        self.level: Any = self._levels[0]  # that of the episode
        self.action_space = self.level.action_space
        self.observation_space = self.level.observation_space

    @property
    def max_steps(self) -> int:
        """The most steps of an episode: minigrid truncates it then."""
        return max(level.max_steps for level in self._levels)  # type: ignore[attr-defined]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw a level, and missions until one is as asked."""
        super().reset(seed=seed)
        self.level = self._levels[int(self.np_random.integers(len(self._levels)))]
        for _ in range(MOST_DRAWS):
            observation, info = self.level.reset(seed=int(self.np_random.integers(2**31)))
            if self._is_asked_for(observation["mission"]):
                return observation, info | {"success": False}
        raise ConfigError(
            f"{MOST_DRAWS} missions of {self.level.spec.id} were drawn, and none was as "
            f"only={list(self.only)} and without={list(self.without)} ask. The last one: "
            f"{observation['mission']!r}."
        )

    def _is_asked_for(self, mission: str) -> bool:
        return (not self.only or any(part in mission for part in self.only)) and not any(
            part in mission for part in self.without
        )

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.level.step(action)
        return observation, float(reward), terminated, truncated, info | {"success": reward > 0}

    def render(self) -> Any:
        return self.level.render()

    def close(self) -> None:
        for level in self._levels:
            level.close()


gymnasium.register("lgym/BabyAI-v0", "lgym.envs.babyai:BabyAIEnv")
gymnasium.register(OWN_LEVEL, "lgym.envs.babyai_levels:PickupThenGoToLocal")
