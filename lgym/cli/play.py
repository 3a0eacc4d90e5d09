"""`lgym play`: watch the agent play turn by turn, or take the turns yourself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from lgym.agents.base import TextAgent
from lgym.agents.parsing import action_number
from lgym.cli.rendering import Pictures, rendering_env
from lgym.cli.runs import CHECKPOINTS
from lgym.data import RolloutDataModule
from lgym.data.questions import action_of, offered
from lgym.data.seeds import stream
from lgym.data.slot import Slot
from lgym.data.table import ContextTable, ReplyTable
from lgym.modules import PolicyLearner
from lgym.terminal import escape_control_chars, format_turn, one_line, paint, say
from lgym.types import ConfigError, ParsedAction

GIF = "play.gif"

Table = ContextTable | ReplyTable


@dataclass(frozen=True)
class Show:
    """What is to be shown, and how; `LgymTrainer.play` says what each is."""

    episodes: int
    seed: int
    delay: float
    render: bool
    render_to: str | None
    root: str
    ckpt_path: str | None

    def __post_init__(self) -> None:
        for name, value, least in (("episodes", self.episodes, 1), ("seed", self.seed, 0), ("delay", self.delay, 0)):
            if value < least:
                raise ConfigError(f"--{name} is {value}; it must be {least} or more.")
        if self.render_to is not None and not self.render:
            raise ConfigError(f"--render_to {self.render_to} is where --render writes frames to: give --render too.")

    @property
    def gif(self) -> Path:
        """In the folder of the run that the checkpoint belongs to."""
        if self.render_to is not None:
            return Path(self.render_to)
        folder = Path(self.root)
        if self.ckpt_path is not None and Path(self.ckpt_path).parent.name == CHECKPOINTS:
            folder = Path(self.ckpt_path).parent.parent
        return folder / GIF

    def require_no_model(self, *, greedy: bool) -> None:
        """Refuses what only a model could do, where a person plays."""
        if greedy or self.ckpt_path is not None:
            raise ConfigError(f"--human loads no model: leave {'--greedy' if greedy else '--ckpt_path'} out.")


class Stage:
    """The environment that is played in, its pictures, and the returns so far."""

    def __init__(self, data: RolloutDataModule, show: Show) -> None:
        self.show = show
        self.env: gymnasium.Env = rendering_env(data) if show.render else data.env_maker("predict")()
        self._pictures = Pictures(self.env) if show.render else None
        self.returns: list[float] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within, episodes are played; the end of the input, or Ctrl-C, ends them without an error."""
        try:
            yield
        except (KeyboardInterrupt, EOFError):
            say("\nStopped.")
        finally:
            self.env.close()
            if self._pictures is not None:
                self._pictures.save(self.show.gif, self.show.delay)
        if len(self.returns) > 1:
            say(f"\n{len(self.returns)} episodes, mean return {np.mean(self.returns):+.4f}")

    def seeds(self) -> Iterator[int]:
        """The reset seed of each episode; says which it is."""
        for number in range(self.show.episodes):
            seed = self.show.seed + number
            say(f"\n{paint(f'Episode {number + 1} of {self.show.episodes}', '1')} (seed {seed})")
            yield seed

    def picture(self) -> None:
        if self._pictures is not None:
            self._pictures.take()

    def ended(self, episode_return: float, turns: int, *, terminated: bool) -> None:
        self.returns.append(episode_return)
        how = "terminated" if terminated else "truncated"
        say(f"Return {paint(f'{episode_return:+g}', '1')} after {turns} turn{'s' * (turns > 1)}, {how}.")


def watch(data: RolloutDataModule, module: PolicyLearner, show: Show, *, greedy: bool) -> None:
    """Plays and prints episodes; the module has its model."""
    stage = Stage(data, show)
    agent, builder, recall = data.agent_of("predict"), data.context_builder("predict"), data.recall("predict")
    slot = Slot(stage.env, agent, builder, chooses=module.chooses, history=data.history, recall=recall)
    rng = None if greedy else np.random.default_rng(stream(show.seed, "predict", "actions"))
    say(escape_control_chars(agent.system_prompt))
    policy: Any
    with module.acting() as policy, stage.open():
        for seed in stage.seeds():
            slot.reset(seed)
            stage.picture()
            table: Table = (ReplyTable if policy.speaks else ContextTable)(policy, going_on=data.history != 0)
            terminated = False
            while slot.live:
                terminated = _turn(slot, table, rng)
                stage.picture()
                time.sleep(show.delay)
            stage.ended(slot.episode_return, len(slot.answers), terminated=terminated)


def _turn(slot: Slot, table: Table, rng: np.random.Generator | None) -> bool:
    """Plays and prints one turn; whether the episode terminated with it."""
    number = table.number(slot.context)
    choices, (said,) = table.act(np.array([number]), rng)
    reward, terminated, _ = slot.step(said)
    note = "" if slot.parsed else "; the reply names no action"
    say("\n" + "\n".join(format_turn(table.turn(number, int(choices[0]), reward), note)))
    return terminated


def play_yourself(data: RolloutDataModule, show: Show) -> None:
    """Asks a person for every action."""
    stage = Stage(data, show)
    agent, env = data.agent_of("predict"), stage.env
    say(escape_control_chars(agent.system_prompt))
    with stage.open():
        for seed in stage.seeds():
            observation, info = env.reset(seed=seed)
            stage.picture()
            total, turns, terminated, truncated = 0.0, 0, False, False
            while not (terminated or truncated):
                action = _asked(agent, env, observation, info)
                observation, reward, terminated, truncated, info = env.step(action)
                total, turns = total + float(reward), turns + 1
                say(f"  reward {float(reward):+g}")
                stage.picture()
                time.sleep(show.delay)
            say("\n" + escape_control_chars(agent.format_observation(observation)))
            stage.ended(total, turns, terminated=bool(terminated))


def _asked(agent: TextAgent, env: gymnasium.Env, observation: Any, info: Any) -> Any:
    """The action that is typed, asked for until it is one."""
    candidates = offered(agent, observation, info) or ()
    say("\n" + escape_control_chars(agent.format_observation(observation)))
    say("  ".join(f"{number}: {one_line(text)}" for number, text in enumerate(candidates)) or "(what do you say?)")
    while True:
        parsed = typed_action(agent, candidates, input("> "))
        if parsed.ok and env.action_space.contains(parsed.action):
            return parsed.action
        say(f"  {escape_control_chars(parsed.reason) or f'{parsed.action!r} is not in {env.action_space}'}. Again:")


def typed_action(agent: TextAgent, candidates: Sequence[str], typed: str) -> ParsedAction:
    """The candidate of that number or name, or what the agent reads in the text if that is one of them."""
    number = action_number(typed, candidates)
    if number is not None:
        return ParsedAction(action_of(agent, candidates[number]))
    parsed = agent.parse(typed)
    if not parsed.ok or not candidates:
        return parsed
    if any(np.array_equal(parsed.action, action_of(agent, text)) for text in candidates):
        return parsed
    return ParsedAction.failure(f"{typed!r} is not among what can be done now")
