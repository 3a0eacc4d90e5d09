"""Checks of a run's agent and of what it imitates, before a model is loaded."""

from collections.abc import Collection, Sequence

import gymnasium

from lgym import distributed
from lgym.agents import GeneralAgent, TextAgent
from lgym.agents.actions import is_action
from lgym.data.logged.episodes import LoggedEpisode
from lgym.data.prompts.action_candidates import action_of, offered
from lgym.types import ConfigError, Learner, ParsedAction


def check_speaking(agent: TextAgent, env: gymnasium.Env) -> None:
    """Have the agent parse an empty response, and check its fallback. Raises `ValueError`."""
    name = type(agent).__name__
    parsed = agent.parse("")
    if not isinstance(parsed, ParsedAction):
        raise ConfigError(
            f"{name}.parse returned {parsed!r} for an empty response; it must return a ParsedAction."
        )
    if parsed.ok and not is_action(env.action_space, parsed.action):
        raise ConfigError(
            f"{name}.extract_action returned {parsed.action!r} for an empty response, which is not in the "
            f"environment's action space {env.action_space}: return an action of it, or None where the text "
            "names none."
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
            if not is_action(env.action_space, action):
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


PASSES = ("update_epochs", "prompts_per_pass", "num_minibatches", "minibatch_size")
"""Settings of passes over a rollout."""


def require_replay(has_replay: bool, learner: Learner, passes: Collection[str]) -> None:
    """Raise `ConfigError` where there is a replay buffer that nothing learns from, or passes over a rollout
    are set where the buffer is learned from.

    Args:
        has_replay: whether `data.replay` is set.
        learner: of the run.
        passes: those of `PASSES` that are set.
    """
    if learner.sft_rollouts:
        passes = set(passes) - {"update_epochs"}  # there may be as many over the turns to imitate
    if learner.uses_replay and passes:
        raise ConfigError(
            f"data.{min(passes)} is of passes over a rollout, and the model's algorithm learns from the "
            "transitions of many: set updates_per_rollout and minibatch_size of data.replay instead."
        )
    if has_replay and not learner.uses_replay:
        raise ConfigError(
            "data.replay is set, and the model's algorithm learns from each rollout alone: leave it out, or "
            "take lgym.modules.DQN."
        )


def require_value_learner(uses_replay: bool) -> None:
    """Raise `ConfigError` for logged play under an algorithm that learns from its own."""
    if not uses_replay:
        raise ConfigError(
            "data.logged_episodes was played by another policy, and the model's algorithm learns from its "
            "own play: take lgym.modules.CQL or lgym.modules.DQN, or imitate it (data.demonstrations)."
        )


def require_capacity(capacity: int, episodes: Sequence[LoggedEpisode], total: int) -> None:
    """Raise `ConfigError` where a log has nothing for a process, or more than its replay buffer holds.

    Args:
        capacity: of the replay buffer.
        episodes: those of this process.
        total: episodes of all.
    """
    turns = sum(len(episode.turns) for episode in episodes)
    if not turns:
        raise ConfigError(
            f"data.logged_episodes has {total} episodes for {distributed.world_size()} processes: lower "
            "trainer.devices."
        )
    if turns > capacity:
        raise ConfigError(
            f"data.logged_episodes has {turns} turns and data.replay.capacity is {capacity}: set it to "
            f"{turns} or more."
        )


def require_imitation(given: bool, learner: Learner, turns_per_pass: int | None) -> None:
    """Raise `ConfigError` unless there are turns to imitate exactly where the model imitates, and where
    passes of imitation are shortened and none is made."""
    if given != learner.uses_sft(0):
        sources = "data.demonstrations, data.self_imitation or data.dagger"
        there = sources if given else f"neither {sources.replace(' or ', ' nor ')}"
        raise ConfigError(
            f"There is {there} to imitate, and sft.coef or sft.rollouts of the model is "
            f"{'0' if given else 'above 0'}: set both sides, or neither."
        )
    if turns_per_pass is not None and not learner.sft_rollouts:
        raise ConfigError(
            f"data.sft_turns_per_pass is {turns_per_pass}, and no rollout learns from imitation alone: set "
            "sft.rollouts of the model, or leave it out."
        )
