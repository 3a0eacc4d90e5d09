"""An environment's own pictures of an episode: text as it is drawn, frames in the end as one GIF."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from PIL import Image

from lgym.data import RolloutDataModule
from lgym.terminal import sanitize_rendering, say
from lgym.types import ConfigError

MODES = ("ansi", "rgb_array")
"""What can be shown, the better first."""

SHORTEST = 0.1  # seconds of a frame


def rendering_env(data: RolloutDataModule) -> gymnasium.Env:
    """The environment that `predict` plays in, made to draw itself.

    Raises:
        ValueError: if it can do so neither as text nor as frames.
    """
    own = data.eval_env_kwargs or {}
    mode = {**(data.env_kwargs or {}), **own}.get("render_mode")
    if mode is None:
        plain = data.env_maker("predict")()
        offered = plain.metadata.get("render_modes", ())
        plain.close()
        mode = next((m for m in MODES if m in offered), None)
        if mode is None:
            raise ConfigError(
                f"{data.env} cannot be rendered as text (ansi) or frames (rgb_array): it knows "
                f"{', '.join(offered) or 'no mode'}. Leave --render out."
            )
    elif mode not in MODES:
        raise ConfigError(f"The environment's render_mode is {mode!r}; --render shows {' or '.join(MODES)}. Leave it out.")
    data.eval_env_kwargs = {**own, "render_mode": mode}
    return data.env_maker("predict")()


class Pictures:
    """What an environment draws, turn by turn."""

    def __init__(self, env: gymnasium.Env) -> None:
        self._env = env
        self._frames: list[Image.Image] = []

    def take(self) -> None:
        """Prints the text, or keeps the frame."""
        try:
            drawn = self._env.render()
        except DependencyNotInstalled as error:
            raise ConfigError(f"The environment cannot be rendered: {error}. Install that, or leave --render out.") from error
        if isinstance(drawn, str):
            say(sanitize_rendering(drawn).rstrip("\n"))
        elif drawn is not None:
            self._frames.append(Image.fromarray(np.asarray(drawn, dtype=np.uint8)))

    def save(self, path: Path, seconds: float) -> None:
        """Writes the frames, if there are any, each for so many seconds."""
        if not self._frames:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        first, *rest = self._frames
        first.save(path, "GIF", save_all=True, append_images=rest, duration=int(1000 * max(seconds, SHORTEST)), loop=0)
        say(f"{len(self._frames)} frames written to {path}")
