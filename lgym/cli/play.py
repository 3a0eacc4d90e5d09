"""`lgym play`: watch the agent play turn by turn, or take the turns yourself."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from lgym.agents.actions import is_action
from lgym.agents.base import TextAgent
from lgym.agents.parsing import action_number
from lgym.cli.rendering import Renderer
from lgym.data import RolloutDataModule
from lgym.data.prompts.action_candidates import action_of, offered
from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.rollout.recorder import PromptTable
from lgym.data.seeds import stream
from lgym.modules import LLMLearner
from lgym.terminal import escape_control_chars, format_turn, one_line, paint, say
from lgym.types import ParsedAction


@dataclass(frozen=True)
class PlayOptions:
    """Options of playing and showing episodes.

    Attributes:
        episodes: number of episodes.
        seed: reset seed of the first; also seeds the sampling.
        greedy: take the likeliest answer.
        delay: seconds to wait after each turn.
        gif: file of the frames; `None` shows no rendering at all.
    """

    episodes: int
    seed: int
    greedy: bool
    delay: float
    gif: Path | None


def play_episodes(
    renderer: Renderer, options: PlayOptions, play_episode: Callable[[int], Iterator[tuple[float, bool]]]
) -> None:
    """Plays episodes; the end of the input, or Ctrl-C, ends them without an error.

    Args:
        renderer: shows the environment after the reset and after each turn.
        options: what was asked for.
        play_episode: plays the episode of a reset seed; yields (0, False) after the reset, then each turn's
            reward, and True if it terminated the episode.
    """
    returns: list[float] = []
    try:
        for seed in range(options.seed, options.seed + options.episodes):
            say(f"\n{paint(f'Episode {len(returns) + 1} of {options.episodes}', '1')} (seed {seed})")
            episode_return = 0.0
            for turns, (reward, terminated) in enumerate(play_episode(seed)):
                renderer.render()
                episode_return += reward
                ending = "terminated" if terminated else "truncated"
                if turns > 0:
                    time.sleep(options.delay)
            returns.append(episode_return)
            shown = paint(f"{episode_return:+g}", "1")
            say(f"Return {shown} after {turns} turn{'s' * (turns > 1)}, {ending}.")
    except (KeyboardInterrupt, EOFError):
        say("\nStopped.")
    finally:
        renderer.close(options.delay)
    if len(returns) > 1:
        say(f"\n{len(returns)} episodes, mean return {np.mean(returns):+.4f}")


def watch(data: RolloutDataModule, module: LLMLearner, options: PlayOptions) -> None:
    """Plays and prints episodes; the module has its model."""
    renderer = Renderer(data, options.gif)
    runner = EnvRunner(renderer.env, data.episode_prompts("predict"))
    rng = None if options.greedy else np.random.default_rng(stream(options.seed, "predict", "actions"))
    say(escape_control_chars(runner.prompts.agent.system_prompt))
    with module.inference() as policy:

        def play_episode(seed: int) -> Iterator[tuple[float, bool]]:
            runner.reset(seed)
            yield 0.0, False
            table = PromptTable(policy, keep_kv_cache=data.history != 0)
            while runner.live:
                number = table.index(runner.prompt)
                response_number = int(table.act(np.array([number]), rng)[0])
                reward, terminated, _ = runner.step(table.responses[response_number])
                note = "" if runner.parsed else "; the response names no action"
                say("\n" + format_turn(table.turn(number, response_number, reward), note))
                yield reward, terminated

        play_episodes(renderer, options, play_episode)


def play_yourself(data: RolloutDataModule, options: PlayOptions) -> None:
    """Asks a person for every action."""
    renderer = Renderer(data, options.gif)
    agent, env = data.agents["predict"], renderer.env
    say(escape_control_chars(agent.system_prompt))

    def play_episode(seed: int) -> Iterator[tuple[float, bool]]:
        observation, info = env.reset(seed=seed)
        yield 0.0, False
        terminated = truncated = False
        while not (terminated or truncated):
            action = _ask_person(agent, env, observation, info)
            observation, reward, terminated, truncated, info = env.step(action)
            say(f"  reward {float(reward):+g}")
            yield float(reward), terminated
        if not terminated:  # in training no agent words what is behind the end
            say("\n" + escape_control_chars(agent.format_observation(observation)))

    play_episodes(renderer, options, play_episode)


def _ask_person(agent: TextAgent, env: gymnasium.Env, observation: Any, info: Any) -> Any:
    candidates = offered(agent, observation, info) or ()
    say("\n" + escape_control_chars(agent.format_observation(observation)))
    say(
        "  ".join(f"{number}: {one_line(text)}" for number, text in enumerate(candidates))
        or "(what do you say?)"
    )
    while True:
        parsed = parse_typed_action(agent, candidates, input("> "))
        if parsed.ok and is_action(env.action_space, parsed.action):
            return parsed.action
        say(
            f"  {escape_control_chars(parsed.reason) or f'{parsed.action!r} is not in {env.action_space}'}. "
            "Again:"
        )


def parse_typed_action(agent: TextAgent, candidates: Sequence[str], typed: str) -> ParsedAction:
    """The candidate of that number or name, or the action that the agent reads in the text if it is a
    candidate's."""
    actions = [action_of(agent, text) for text in candidates]
    number = action_number(typed, candidates)
    if number is not None:
        return ParsedAction(actions[number])
    parsed = agent.parse(typed)
    if parsed.ok and candidates and not any(np.array_equal(parsed.action, action) for action in actions):
        return ParsedAction.failure(f"{typed!r} is not among what can be done now")
    return parsed
