"""Episodes that a browser plays in, or watches."""

import base64
import io
import uuid
from collections import OrderedDict
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from PIL import Image

from lgym.cli.rendering import MODES
from lgym.cli.serve.inputs import BadInputError
from lgym.data import RolloutDataModule
from lgym.data.prompts.action_candidates import candidate_number
from lgym.data.rollout.env_runner import EnvRunner
from lgym.modules import LLMLearner
from lgym.plain_text import escape_control_chars
from lgym.rollout import Prompt, Response


class PageEpisode:
    """An environment with its episode."""

    def __init__(self, data: RolloutDataModule, module: LLMLearner, seed: int) -> None:
        self._module = module
        self._agent = data.agents["predict"]
        kwargs, mode = data.eval_env_kwargs, render_mode(data)
        try:
            if mode is not None:
                data.eval_env_kwargs = {**(kwargs or {}), "render_mode": mode}
            self._env = data.make_env("predict")
        finally:
            data.eval_env_kwargs = kwargs
        self._runner = EnvRunner(self._env, data.episode_prompts("predict"))
        self._runner.reset(seed)
        self.last_reward: float | None = None
        self.ending = ""
        self.turns = 0

    @property
    def prompt(self) -> Prompt:
        return self._runner.prompt

    def step(self, response: Response) -> None:
        """Takes the turn of a response."""
        reward, terminated, truncated = self._runner.step(response)
        self.last_reward, self.turns = float(reward), self.turns + 1
        self.ending = "terminated" if terminated else "truncated" if truncated else ""

    def response_of(self, text: Any) -> Response:
        """The response of a person's text.

        Raises:
            BadInputError: if it is none of the candidates.
        """
        prompt = self.prompt
        choice = -1
        if prompt.candidates:
            known = isinstance(text, str) and candidate_number(self._agent, text, prompt.candidates)
            if known is None or known is False:
                raise BadInputError(f"action is none of the candidates {', '.join(prompt.candidates)}")
            choice, text = known, prompt.candidates[known]
        elif not isinstance(text, str):
            raise BadInputError("action has to be a text")
        return self._module.policy.demonstrated(prompt, text, (), choice)

    def state(self) -> dict[str, Any]:
        """The state of the episode, as the page shows it."""
        live = self._runner.live
        return {
            "observation_text": self.prompt.observation_text
            if live
            else self._runner.prompts.observation_text,
            "candidates": list(self.prompt.candidates) if live else [],
            "turns": self.turns,
            "reward": self.last_reward,
            "return": self._runner.episode_return,
            "ending": self.ending,
            **self._picture(),
        }

    def _picture(self) -> dict[str, str]:
        if self._env.render_mode not in MODES:
            return {}
        try:
            rendered = self._env.render()
        except DependencyNotInstalled:
            return {}
        if isinstance(rendered, str):
            return {"drawing": escape_control_chars(rendered)}
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(rendered, dtype=np.uint8)).save(buffer, "PNG")
        return {"picture": base64.b64encode(buffer.getvalue()).decode()}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


class PageEpisodes:
    """The episodes under way, by their ids; beyond `limit` the one that was left alone for longest ends.

    Args:
        data: makes their environments.
        module: whose policy plays.
        limit: most of them.
    """

    def __init__(self, data: RolloutDataModule, module: LLMLearner, limit: int) -> None:
        self._data, self._module, self._limit = data, module, limit
        self._episodes: OrderedDict[str, PageEpisode] = OrderedDict()

    def begin(self, seed: int) -> tuple[str, PageEpisode]:
        """A new episode and its id."""
        episode = PageEpisode(self._data, self._module, seed)
        name = uuid.uuid4().hex
        self._episodes[name] = episode
        while len(self._episodes) > self._limit:
            self._episodes.popitem(last=False)[1].close()
        return name, episode

    def get(self, name: str) -> PageEpisode | None:
        """The episode of an id."""
        if name in self._episodes:
            self._episodes.move_to_end(name)
        return self._episodes.get(name)

    def close(self) -> None:
        """Closes all."""
        while self._episodes:
            self._episodes.popitem()[1].close()


def render_mode(data: RolloutDataModule) -> str | None:
    """Pictures where the environment has them, else text; `None` where it has neither."""
    env = data.make_env("predict")
    offered = env.metadata.get("render_modes", ())
    env.close()
    return next((mode for mode in reversed(MODES) if mode in offered), None)
