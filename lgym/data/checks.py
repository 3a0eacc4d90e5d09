"""What can be wrong with a run's data, told before a model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from lgym.agents import GeneralAgent, TextAgent
from lgym.data.questions import action_of, offered
from lgym.types import ConfigError, ParsedAction

if TYPE_CHECKING:
    from lgym.data.datamodule import RolloutDataModule


def check_speaking(agent: TextAgent, env: gymnasium.Env) -> None:
    """Has the agent read a reply that says nothing, and looks at its fallback."""
    name = type(agent).__name__
    own = type(agent).parse is not TextAgent.parse  # such as that of `lgym.Agent`, whose extract_action may return anything
    parsed = agent.parse("") if own else agent.extract_action("")
    if not isinstance(parsed, ParsedAction):
        raise ConfigError(f"{name}.extract_action returned {parsed!r} for an empty reply; it must return a ParsedAction.")
    space = env.action_space
    env.close()
    if agent.fallback == "default" and not space.contains(agent.default_action):
        raise ConfigError(
            f"{name}.fallback is 'default', and its default_action {agent.default_action!r} is not in the environment's "
            f"action space {space}."
        )


def offers_candidates(agent: TextAgent, env: gymnasium.Env, seed: int) -> bool:
    """Asks the agent about a first observation, so that its mistakes show before a model is loaded."""
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
    """What is said where the policy chooses and the agent has nothing to choose from."""
    why = f" ({agent.why_no_candidates()})" if isinstance(agent, GeneralAgent) else ""
    return ConfigError(
        f"{type(agent).__name__} offers no candidates{why}, and this policy chooses between candidates. Set its class "
        "attribute `actions`, return them from `candidates(observation, info)`, or let the model speak: "
        "model.policy.class_path: lgym.policies.GenerationPolicy."
    )


def require_sound(data: RolloutDataModule) -> None:
    """Looks at a data module's settings. Raises `ValueError` for those that cannot be, or do not go together."""
    require_positive(
        num_envs=data.num_envs,
        update_epochs=data.update_epochs,
        minibatch_size=data.minibatch_size,
        imitation_size=data.imitation_size,
        group_size=data.group_size,
        eval_episodes=data.eval_episodes,
        max_observation_tokens=1 if data.max_observation_tokens is None else data.max_observation_tokens,
    )
    require_one_amount(data.episodes_per_rollout, data.turns_per_rollout, data.num_envs)
    require_whole_groups(data.group_size, data.episodes_per_rollout)
    if data.refill_groups < 0 or (data.refill_groups > 0 and data.group_size < 2):
        raise ConfigError(
            f"data.refill_groups is {data.refill_groups} and data.group_size is {data.group_size}; give 0 or more groups, "
            "of two episodes or more."
        )
    require_history(data.history)
    require_seconds(worker_timeout=data.worker_timeout)
    require_replayable(data.replay, data.episodes_per_rollout, data.history)


def require_history(history: Any) -> None:
    if history != "full" and history < 0:
        raise ConfigError(f"data.history is {history}; it must be 0 or more turns, or full.")


def require_seconds(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ConfigError(f"data.{name} is {value:g} seconds; it must be above 0.")


def require_replayable(replay: Any, episodes: int | None, history: Any) -> None:
    if replay is not None and (episodes is None or history != 0):
        raise ConfigError(
            f"data.replay keeps whole episodes, asked without history: set data.episodes_per_rollout (it is {episodes}) and "
            f"data.history: 0 (it is {history})."
        )


def require_imitation(given: bool, imitates: bool) -> None:
    if given != imitates:
        what = "data.demonstrations or data.replay" if given else "neither data.demonstrations nor data.replay"
        how = "0" if given else "above 0"
        raise ConfigError(
            f"There is {what} to imitate, and sft_coef or sft_rollouts of the model is {how}: set both sides, or neither."
        )


def require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"data.{name} is {value}; it must be 1 or more.")


def require_whole_groups(group_size: int, episodes: int | None) -> None:
    if group_size > 1 and (episodes is None or episodes % group_size):
        raise ConfigError(
            f"data.group_size is {group_size} and data.episodes_per_rollout is {episodes}; groups are compared as whole "
            "episodes, so give episodes_per_rollout as a multiple of group_size."
        )


def require_one_amount(episodes: int | None, turns: int | None, num_envs: int) -> None:
    if (episodes is None) == (turns is None):
        raise ConfigError(
            f"data.episodes_per_rollout is {episodes} and data.turns_per_rollout is {turns}; give one of the two."
        )
    require_positive(episodes_per_rollout=1 if episodes is None else episodes)
    if turns is not None and (turns < num_envs or turns % num_envs):
        raise ConfigError(
            f"data.turns_per_rollout is {turns}; it must be a multiple of data.num_envs ({num_envs}), such as "
            f"{max(1, round(turns / num_envs)) * num_envs}."
        )
