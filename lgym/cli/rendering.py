"""An environment's own rendering of an episode: text printed turn by turn, or frames saved as one GIF."""

from contextlib import closing
from pathlib import Path

import numpy as np
from gymnasium.error import DependencyNotInstalled
from PIL import Image

from lgym.data import RolloutDataModule
from lgym.terminal import sanitize_rendering, say
from lgym.types import ConfigError

MODES = ("ansi", "rgb_array")  # in order of preference
MIN_FRAME_SECONDS = 0.1


class Renderer:
    """An environment to play in, whose rendering is shown after each turn.

    Args:
        data: the run's data; the environment is that of `predict`.
        gif: the file that frames are written to; `None` shows no rendering.

    Raises:
        ConfigError: if it is to be shown, and is neither text nor frames.
    """

    def __init__(self, data: RolloutDataModule, gif: Path | None) -> None:
        if gif is not None:
            data.eval_env_kwargs = {**(data.eval_env_kwargs or {}), "render_mode": _render_mode(data)}
        self.env = data.make_env("predict")
        self._gif = gif
        self._frames: list[Image.Image] = []

    def render(self) -> None:
        """Prints the text, or keeps the frame."""
        try:
            rendered = None if self._gif is None else self.env.render()
        except DependencyNotInstalled as error:
            raise ConfigError(
                f"The environment cannot be rendered: {error}. Install that, or leave --render out."
            ) from error
        if isinstance(rendered, str):
            say(sanitize_rendering(rendered).rstrip("\n"))
        elif rendered is not None:
            self._frames.append(Image.fromarray(np.asarray(rendered, dtype=np.uint8)))

    def close(self, seconds: float) -> None:
        """Closes the environment and writes the frames as a GIF, if there are any, each shown for
        `seconds`."""
        self.env.close()
        if self._gif is not None and self._frames:
            self._gif.parent.mkdir(parents=True, exist_ok=True)
            self._frames[0].save(
                self._gif,
                "GIF",
                save_all=True,
                append_images=self._frames[1:],
                duration=int(1000 * max(seconds, MIN_FRAME_SECONDS)),
                loop=0,
            )
            say(f"{len(self._frames)} frames written to {self._gif}")


def _render_mode(data: RolloutDataModule) -> str:
    """The configured mode, else the first of `MODES` that the environment has."""
    configured = {**(data.env_kwargs or {}), **(data.eval_env_kwargs or {})}.get("render_mode")
    if configured in MODES:
        return configured
    if configured is not None:
        raise ConfigError(
            f"The environment's render_mode is {configured!r}; --render shows {' or '.join(MODES)}. Leave it "
            "out."
        )
    with closing(data.make_env("predict")) as env:
        offered = env.metadata.get("render_modes", ())
    for mode in MODES:
        if mode in offered:
            return mode
    raise ConfigError(
        f"{data.env} cannot be rendered as text (ansi) or frames (rgb_array): it knows "
        f"{', '.join(offered) or 'no mode'}. Leave --render out."
    )
