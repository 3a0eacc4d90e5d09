"""An environment's own rendering of an episode: text printed turn by turn, or frames saved as one GIF."""

from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from PIL import Image

from lgym.data import RolloutDataModule
from lgym.terminal import sanitize_rendering, say
from lgym.types import ConfigError

MODES = ("ansi", "rgb_array")  # in order of preference
MIN_FRAME_SECONDS = 0.1


def rendering_env(data: RolloutDataModule) -> gymnasium.Env:
    """The environment that `predict` plays in, with a render mode.

    Raises:
        ConfigError: if it renders neither as text nor as frames.
    """
    eval_env_kwargs = data.eval_env_kwargs or {}
    mode = {**(data.env_kwargs or {}), **eval_env_kwargs}.get("render_mode")
    if mode is None:
        with closing(data.make_env("predict")) as env:
            offered = env.metadata.get("render_modes", ())
        mode = next((m for m in MODES if m in offered), None)
        if mode is None:
            raise ConfigError(
                f"{data.env} cannot be rendered as text (ansi) or frames (rgb_array): it knows "
                f"{', '.join(offered) or 'no mode'}. Leave --render out."
            )
    elif mode not in MODES:
        raise ConfigError(
            f"The environment's render_mode is {mode!r}; --render shows {' or '.join(MODES)}. Leave it out."
        )
    data.eval_env_kwargs = {**eval_env_kwargs, "render_mode": mode}
    return data.make_env("predict")


class Renderer:
    """Shows an environment's rendering after each turn; nothing without an environment."""

    def __init__(self, env: gymnasium.Env | None) -> None:
        self._env = env
        self._frames: list[Image.Image] = []

    def render(self) -> None:
        """Prints the text, or keeps the frame."""
        try:
            rendered = None if self._env is None else self._env.render()
        except DependencyNotInstalled as error:
            raise ConfigError(
                f"The environment cannot be rendered: {error}. Install that, or leave --render out."
            ) from error
        if isinstance(rendered, str):
            say(sanitize_rendering(rendered).rstrip("\n"))
        elif rendered is not None:
            self._frames.append(Image.fromarray(np.asarray(rendered, dtype=np.uint8)))

    def save(self, path: Path, seconds: float) -> None:
        """Writes the frames as a GIF, if there are any; each is shown for `seconds`."""
        if not self._frames:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        first, *rest = self._frames
        milliseconds = int(1000 * max(seconds, MIN_FRAME_SECONDS))
        first.save(path, "GIF", save_all=True, append_images=rest, duration=milliseconds, loop=0)
        say(f"{len(self._frames)} frames written to {path}")
