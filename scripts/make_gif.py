"""Render an agent before and after training, side by side, as one GIF.

    python -m pip install pygame    # Gymnasium draws its games with it
    python scripts/make_gif.py docs/blackjack.gif --config configs/blackjack.yaml --ckpt_path last

Before is the untrained model, or the checkpoint of `--before`; after is that of `--ckpt_path`. Both play
the same reset seeds greedily. The text below each picture is the action that was taken and the return of the
episodes so far. Other options are those of `lgym play`.
"""

from __future__ import annotations

import argparse
import os
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from PIL import Image, ImageDraw, ImageFont

from lgym.cli.command_line import LgymCLI
from lgym.data import RolloutDataModule
from lgym.data.rollout.env_runner import EnvRunner
from lgym.modules import PolicyLearner

WIDTH = 360
CAPTION = 64
PAUSE = 3  # frames for which the end of an episode is shown


def caption(picture: Any, title: str, text: str) -> Image.Image:
    """A frame of the environment, scaled to the common width, with two lines below it."""
    image = Image.fromarray(np.asarray(picture, dtype=np.uint8))
    image = image.resize((WIDTH, round(image.height * WIDTH / image.width)))
    frame = Image.new("RGB", (WIDTH, image.height + CAPTION), "white")
    frame.paste(image)
    draw = ImageDraw.Draw(frame)
    draw.text((8, image.height + 6), title, fill="black", font=ImageFont.load_default(20))
    draw.text((8, image.height + 34), text, fill="black", font=ImageFont.load_default(18))
    return frame


def play(data: RolloutDataModule, module: PolicyLearner, episodes: int, title: str) -> list[Image.Image]:
    """The frames of greedy episodes with the reset seeds 0, 1, ...

    Args:
        data: its environment draws pictures (`render_mode` is rgb_array).
        module: has its model.
        episodes: number of episodes.
        title: the first line below every frame.
    """
    env = data.make_env("predict")
    runner = EnvRunner(env, data.episode_prompts("predict"))
    frames = []
    total = 0.0
    with module.inference() as policy:
        for seed in range(episodes):
            runner.reset(seed)
            frames.append(caption(env.render(), title, f"episode {seed + 1}, return {total:+g}"))
            while runner.live:
                response = policy.act([runner.prompt], None, keep_kv_cache=False)[0][0]
                reward, _, _ = runner.step(response)
                total += reward
                frames.append(caption(env.render(), title, f"{response.action_text}, return {total:+g}"))
            frames.extend([frames[-1]] * PAUSE)
    env.close()
    return frames


def render(options: list[str], episodes: int, title: str) -> list[Image.Image]:
    """The frames of `lgym play` with these options."""
    frames: list[Image.Image] = []

    class PictureCLI(LgymCLI):
        """The command line, whose `play` keeps pictures in place of printing text."""

        def play(self, model: Any, datamodule: Any, ckpt_path: str | None = None, **_: Any) -> None:
            def record() -> None:
                frames.extend(play(datamodule, model, episodes, title))

            self.trainer._with_model(record, model, datamodule, ckpt_path)

    try:
        PictureCLI(["play", *options, "--data.eval_env_kwargs.render_mode=rgb_array"])
    except DependencyNotInstalled as error:
        raise SystemExit(f"The environment cannot be drawn: {error}") from error
    return frames


def save(path: Path, before: list[Image.Image], after: list[Image.Image], seconds: float) -> None:
    """Write both side by side; the shorter one stays at its last frame."""
    pairs = zip_longest(before, after)
    last = [before[-1], after[-1]]
    frames = []
    for pair in pairs:
        left, right = (frame or final for frame, final in zip(pair, last, strict=True))
        both = Image.new("RGB", (2 * WIDTH + 8, max(left.height, right.height)), "white")
        both.paste(left)
        both.paste(right, (WIDTH + 8, 0))
        frames.append(both.quantize(64))
    path.parent.mkdir(parents=True, exist_ok=True)
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=int(1000 * seconds), loop=0, optimize=True
    )


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gif", type=Path, help="the GIF to write")
    parser.add_argument("--config", type=Path, required=True, help="the run's YAML")
    parser.add_argument("--ckpt_path", default="last", help="the trained checkpoint: a file, or `last`")
    parser.add_argument("--before", help="a checkpoint in place of the untrained model")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.7, help="for which a frame is shown")
    arguments, options = parser.parse_known_args(args)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame needs no screen
    options = ["--config", str(arguments.config), *options]
    checkpoint = [] if arguments.before is None else ["--ckpt_path", arguments.before]
    before = render([*options, *checkpoint], arguments.episodes, "before training")
    after = render([*options, "--ckpt_path", arguments.ckpt_path], arguments.episodes, "after training")
    save(arguments.gif, before, after, arguments.seconds)
    print(f"{arguments.gif}: {arguments.gif.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
