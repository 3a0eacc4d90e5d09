"""Checks of a run's data settings, before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import gymnasium

from lgym.agents import GeneralAgent, TextAgent
from lgym.data.prompts.action_candidates import action_of, offered
from lgym.types import ConfigError, ParsedAction

if TYPE_CHECKING:
    from lgym.data.datamodule import RolloutDataModule


def check_speaking(agent: TextAgent, env: gymnasium.Env) -> None:
    """Have the agent parse an empty response, and check its fallback. Raises `ValueError`."""
    name = type(agent).__name__
    # `lgym.Agent` has its own `parse`, since its extract_action may return anything.
    own_parse = type(agent).parse is not TextAgent.parse
    parsed = agent.parse("") if own_parse else agent.extract_action("")
    if not isinstance(parsed, ParsedAction):
        raise ConfigError(
            f"{name}.extract_action returned {parsed!r} for an empty reply; it must return a ParsedAction."
        )
    env.close()
    if agent.fallback == "default" and not env.action_space.contains(agent.default_action):
        raise ConfigError(
            f"{name}.fallback is 'default', and its default_action {agent.default_action!r} is not in the "
            f"environment's action space {env.action_space}."
        )


def offers_candidates(agent: TextAgent, env: gymnasium.Env, seed: int) -> bool:
    """Check the agent's text and candidates at a first observation. Returns whether it offers candidates."""
    name = type(agent).__name__
    try:
        observation, info = env.reset(seed=seed)
        text = agent.format_observation(observation)
        if not isinstance(text, str):
            raise ConfigError(f"{name}.format_observation returned {text!r}; it must return text.")
        candidates = offered(agent, observation, info)
        for candidate in candidates or ():
            action = action_of(agent, candidate)
            if not env.action_space.contains(action):
                raise ConfigError(
                    f"{name} reads its candidate {candidate!r} as the action {action!r}, which is not in "
                    f"{env.spec.id if env.spec else env}'s action space {env.action_space}."
                )
    finally:
        env.close()
    return candidates is not None


def no_candidates(agent: TextAgent) -> ConfigError:
    """The error of a candidate-scoring policy whose agent has no candidates."""
    reason = f" ({agent.why_no_candidates()})" if isinstance(agent, GeneralAgent) else ""
    return ConfigError(
        f"{type(agent).__name__} offers no candidates{reason}, and this policy chooses between candidates. "
        "Set its class attribute `actions`, return them from `candidates(observation, info)`, or let the "
        "model speak: model.policy.class_path: lgym.policies.GenerationPolicy."
    )


def require_sound(data: RolloutDataModule) -> None:
    """Raise `ValueError` for settings of a data module that cannot be, or do not go together."""
    if (fault := next(_faults(data), None)) is not None:
        raise ConfigError(f"data.{fault}")


def require_imitation(given: bool, imitates: bool) -> None:
    """Raise `ValueError` unless there are turns to imitate exactly where the model imitates."""
    if given != imitates:
        sources = "data.demonstrations or data.self_imitation"
        there = sources if given else f"neither {sources.replace(' or ', ' nor ')}"
        raise ConfigError(
            f"There is {there} to imitate, and sft.coef or sft.rollouts of the model is "
            f"{'0' if given else 'above 0'}: set both sides, or neither."
        )


def _faults(data: RolloutDataModule) -> Iterator[str]:
    counts = ("num_envs", "update_epochs", "minibatch_size", "sft_batch_size", "group_size", "eval_episodes")
    for name in (*counts, "max_observation_tokens", "episodes_per_rollout"):
        value = getattr(data, name)
        if value is not None and value < 1:
            yield f"{name} is {value}; it must be 1 or more."
    episodes, turns = data.episodes_per_rollout, data.turns_per_rollout
    if (episodes is None) == (turns is None):
        yield (
            f"episodes_per_rollout is {episodes} and data.turns_per_rollout is {turns}; give one of the two."
        )
    if turns is not None and (turns < data.num_envs or turns % data.num_envs):
        yield (
            f"turns_per_rollout is {turns}; it must be a multiple of data.num_envs ({data.num_envs}), such "
            f"as {max(1, round(turns / data.num_envs)) * data.num_envs}."
        )
    if data.group_size > 1 and (episodes is None or episodes % data.group_size):
        yield (
            f"group_size is {data.group_size} and data.episodes_per_rollout is {episodes}; groups are "
            "compared as whole episodes, so give episodes_per_rollout as a multiple of group_size."
        )
    if data.dynamic_sampling_groups < 0 or (data.dynamic_sampling_groups > 0 and data.group_size < 2):
        yield (
            f"dynamic_sampling_groups is {data.dynamic_sampling_groups} and data.group_size is "
            f"{data.group_size}; give 0 or more groups, of two episodes or more."
        )
    if data.history != "full" and data.history < 0:
        yield f"history is {data.history}; it must be 0 or more turns, or full."
    if data.env_timeout <= 0:
        yield f"env_timeout is {data.env_timeout:g} seconds; it must be above 0."
    if data.self_imitation is not None and (episodes is None or data.history != 0):
        yield (
            "self_imitation keeps whole episodes, asked without history: set data.episodes_per_rollout (it "
            f"is {episodes}) and data.history: 0 (it is {data.history})."
        )
