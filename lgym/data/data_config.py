"""The settings of a run's data side. Each dataclass is one subject; the keys of all of them stand side by
side under `data:`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from lgym.agents import TextAgent
from lgym.data.imitation.best_episodes import BestEpisodeBuffer
from lgym.data.imitation.dagger import DAgger
from lgym.data.imitation.demonstrations import DemonstrationSource
from lgym.data.prompts.conversation import History
from lgym.data.replay_buffer import ReplayBuffer
from lgym.data.rollout.exploration_bonus import ExplorationBonus
from lgym.envs.make import EnvWrapper
from lgym.memory import EpisodicMemory, WorkingMemory
from lgym.types import ConfigError

DEFAULT_MINIBATCH_SIZE = 32


@dataclass(kw_only=True, eq=False, repr=False)
class EnvConfig:
    """The environment, and how many are played."""

    env: str
    """Id of a Gymnasium environment, such as Blackjack-v1; `package:Env-v0` imports the package first."""

    agent: TextAgent | None = None
    """Words of that environment, by class_path; null takes lgym.agents.GeneralAgent, for any."""

    env_kwargs: dict[str, Any] | None = None
    """Keyword arguments of the environment's constructor."""

    wrappers: list[EnvWrapper] | None = None
    """Gymnasium wrappers by class_path, such as gymnasium.wrappers.ClipReward; the last is outermost."""

    max_episode_steps: int | None = None
    """Environment steps after which an episode is truncated, each of the `frame_skip` of a turn counted; null
    takes the environment's own limit, 1,000 where it has none, and -1 removes it."""

    frame_skip: int | None = None
    """Environment steps that one answer is repeated for (frame skip, action repeat). Their rewards add up to
    the turn's, and the discount counts turns. An episode that ends in between ends the turn. Null is 1, or
    what random play decides where it decides the size of a rollout."""

    num_envs: int | None = None
    """Environments played together; null takes what random play decides, or 16 where the size of a rollout
    is given."""

    subprocess_envs: bool = False
    """Run each environment in a process of its own: for those that are slow, or that may crash or hang. A
    process that does is replaced, and its episode dropped and begun anew."""

    env_timeout: float = 60.0
    """Seconds after which a process that has not answered hangs; it makes its environment in them."""


@dataclass(kw_only=True, eq=False, repr=False)
class RolloutConfig:
    """The amount of play between two updates, and the minibatches that are made of it."""

    episodes_per_rollout: int | None = None
    """Whole episodes played between two updates. Give this or turns_per_rollout; without both, a few thousand
    random turns decide them and everything below that is null or auto (`lgym.data.measuring`)."""

    turns_per_rollout: int | None = None
    """Turns played between two updates, over all environments; a multiple of num_envs. Episodes continue in
    the next rollout."""

    target_rollout_seconds: float | None = None
    """Time that random play lets a rollout take, playing and learning, at a rough estimate for a model of
    135M parameters; null is 20 s, or 60 s for a policy that writes text. It decides the size of a rollout
    where that is not given."""

    update_epochs: int | None = None
    """Passes over each rollout; null takes what random play decides, or 4 where the size of a rollout is
    given. 1 for an algorithm without clipping."""

    prompts_per_pass: int | None = None
    """Distinct prompts that a pass learns from, drawn with probabilities in proportion to their turns, whose
    weights make up for those left out. Null takes what random play decides, or all of them where the size of
    a rollout is given. (Of a text-generating policy, all responses to them.)"""

    num_minibatches: int | None = None
    """Minibatches in each pass, whose size follows from what is met; null takes what random play decides, or
    those of minibatch_size where the size of a rollout is given."""

    minibatch_size: int | None = None
    """Distinct prompts in a minibatch, with every turn that was played from them; of a text-generating
    policy, distinct responses, with every turn that gave them. Give this or num_minibatches; null is 32 where
    the size of a rollout is given."""

    group_size: int = 1
    """Episodes in a row from one reset seed in training, which grouped estimators (GRPO) compare. A divisor
    of episodes_per_rollout."""

    dynamic_sampling_groups: int = 0
    """The most groups that a rollout plays beside its own, one for each whose returns were all the same
    (DAPO)."""

    replay: ReplayBuffer | Literal["auto"] | None = "auto"
    """Transitions of earlier rollouts, which algorithms that learn values of actions (DQN) draw their
    minibatches from: lgym.data.ReplayBuffer. Null is one with its defaults where it is needed; auto takes
    lgym.data.GraphReplayBuffer where random play meets prompts again."""

    logged_episodes: list[str] | None = None
    """JSON Lines files of episodes, as `lgym predict` writes them, to learn from in place of playing (offline
    reinforcement learning; `docs/algorithms/offline.md`). Evaluations are played all the same."""

    exploration_bonus: ExplorationBonus | Literal["auto"] | None = "auto"
    """Pays in training, beside the environment's rewards, for observations that are seldom seen:
    lgym.data.ExplorationBonus. Returns in reports stay the environment's. Null pays nothing; auto pays where
    random play decides the size of a rollout, and nearly all of its returns are the same."""

    log_episodes_per_rollout: int = 4
    """Number of finished episodes of a rollout whose text is logged, those of the first so many
    environments."""


@dataclass(kw_only=True, eq=False, repr=False)
class PromptConfig:
    """The contents of a prompt beside the observation."""

    history: History = 0
    """Earlier turns of its episode that a prompt shows: 0 for none, a number, or `full`. Of more than the
    model's context takes, the older half is left out at once."""

    max_observation_tokens: int | None = None
    """Limit of one observation; the middle of a longer one is left out, and counted. Null is as many as the
    model's context leaves beside the system prompt."""

    working_memory: WorkingMemory | None = None
    """Shows the last turns of the episode above each observation: lgym.memory.WorkingMemory."""

    episodic_memory: EpisodicMemory | None = None
    """Stores the turns of training's episodes, and shows those that are like the observation:
    lgym.memory.EpisodicMemory. Evaluation reads it and stores nothing."""


@dataclass(kw_only=True, eq=False, repr=False)
class SupervisedConfig:
    """Turns to imitate, beside those that are played; the model's `sft` has their weight."""

    demonstrations: list[DemonstrationSource] | Literal["auto"] | None = "auto"
    """Turns for supervised learning, by class_path: lgym.data.JsonlDemonstrations,
    lgym.data.ExpertDemonstrations, lgym.data.EveryAction. Null is none; auto is the last where random play
    decides the size of a rollout, and many of its returns are the same."""

    demonstration_env_kwargs: dict[str, Any] | None = None
    """Keyword arguments in which the environment differs that experts demonstrate in, such as games kept
    apart."""

    self_imitation: BestEpisodeBuffer | None = None
    """Supervised learning from the run's own best episodes: lgym.data.BestEpisodeBuffer."""

    dagger: DAgger | None = None
    """Supervised learning from an expert's answers in the run's own episodes: lgym.data.DAgger."""

    sft_batch_size: int = 32
    """Demonstrated turns beside each minibatch, or in one while imitation is all that is learned."""

    sft_turns_per_pass: int | None = None
    """The most turns of a pass while imitation is all that is learned: those of the rollout at hand are taken
    first, then some of the others, drawn anew. Null takes all."""

    @property
    def episode_buffers(self) -> dict[str, BestEpisodeBuffer | DAgger]:
        """The buffers of the run's own episodes, by the names of their settings."""
        buffers = {"self_imitation": self.self_imitation, "dagger": self.dagger}
        return {name: buffer for name, buffer in buffers.items() if buffer is not None}


@dataclass(kw_only=True, eq=False, repr=False)
class EvaluationConfig:
    """The episodes that validate, test and predict play."""

    eval_env_kwargs: dict[str, Any] | None = None
    """Keyword arguments in which validate, test and predict differ, such as games kept apart."""

    test_env_kwargs: dict[str, Any] | None = None
    """Keyword arguments in which test differs from validate, such as games that no choice was made by."""

    success_return: float | None = None
    """Return from which an episode counts as a success, in training and evaluation; null takes the
    environment's word, `success` or `is_success` in its info."""

    eval_episodes: int = 100
    """Episodes that validate and test play in each mode, greedy and sampled; predict as many."""

    eval_ci: float | None = None
    """Half the width of the mean return's 95 % interval at which validate and test stop before they have
    played `eval_episodes`, behind 50 and in whole turns of all environments; null plays them all."""


@dataclass(kw_only=True, eq=False, repr=False)
class DataConfig(EvaluationConfig, SupervisedConfig, PromptConfig, RolloutConfig, EnvConfig):
    """All settings of the data side; raises `ConfigError` for those that cannot be, or do not go together."""

    seed: int = 0
    """Seed of everything random on this side: reset seeds, sampled actions, the order of minibatches."""

    def __post_init__(self) -> None:
        if (fault := next(self._faults(), None)) is not None:
            raise ConfigError(f"data.{fault}")

    def prompts_per_minibatch(self, prompts: int) -> int:
        """Size of the minibatches of a pass over so many distinct prompts, or responses."""
        if self.num_minibatches is not None:
            return -(-prompts // self.num_minibatches)
        return DEFAULT_MINIBATCH_SIZE if self.minibatch_size is None else self.minibatch_size

    def _faults(self) -> Iterator[str]:
        counts = (
            "num_envs",
            "frame_skip",
            "update_epochs",
            "prompts_per_pass",
            "num_minibatches",
            "minibatch_size",
            "sft_batch_size",
            "sft_turns_per_pass",
            "group_size",
            "eval_episodes",
        )
        for name in (*counts, "max_observation_tokens", "episodes_per_rollout", "turns_per_rollout"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"{name} is {value}; it must be 1 or more."
        if self.target_rollout_seconds is not None and self.target_rollout_seconds <= 0:
            yield f"target_rollout_seconds is {self.target_rollout_seconds}; it must be above 0."
        if self.eval_ci is not None and self.eval_ci <= 0:
            yield f"eval_ci is {self.eval_ci}; it must be above 0, or null."
        episodes, turns = self.episodes_per_rollout, self.turns_per_rollout
        if episodes is not None and turns is not None:
            yield (
                f"episodes_per_rollout is {episodes} and data.turns_per_rollout is {turns}; give one "
                "of the two."
            )
        if self.num_minibatches is not None and self.minibatch_size is not None:
            yield (
                f"num_minibatches is {self.num_minibatches} and data.minibatch_size is "
                f"{self.minibatch_size}; give one of the two."
            )
        if turns is not None and self.num_envs and (turns < self.num_envs or turns % self.num_envs):
            yield (
                f"turns_per_rollout is {turns}; it must be a multiple of data.num_envs ({self.num_envs}), "
                f"such as {max(1, round(turns / self.num_envs)) * self.num_envs}."
            )
        if self.group_size > 1 and (turns is not None or (episodes or 0) % self.group_size):
            yield (
                f"group_size is {self.group_size} and data.episodes_per_rollout is {episodes}; groups are "
                "compared as whole episodes, so give episodes_per_rollout as a multiple of group_size."
            )
        if self.dynamic_sampling_groups < 0 or (self.dynamic_sampling_groups > 0 and self.group_size < 2):
            yield (
                f"dynamic_sampling_groups is {self.dynamic_sampling_groups} and data.group_size is "
                f"{self.group_size}; give 0 or more groups, of two episodes or more."
            )
        if self.history != "full" and self.history < 0:
            yield f"history is {self.history}; it must be 0 or more turns, or full."
        if self.env_timeout <= 0:
            yield f"env_timeout is {self.env_timeout:g} seconds; it must be above 0."
        if self.demonstration_env_kwargs and self.demonstrations in ("auto", None, []):
            yield (
                "demonstration_env_kwargs is where data.demonstrations are played, and there are none: give "
                "some, or leave it out."
            )
        for name in ("exploration_bonus", "dagger"):
            if self.logged_episodes is not None and getattr(self, name) not in ("auto", None):
                yield (
                    f"{name} looks at what the model plays, and data.logged_episodes are not played: leave "
                    "one of the two out."
                )
        if self.logged_episodes is not None and (self.working_memory or self.episodic_memory) is not None:
            yield (
                "logged_episodes hold the texts that were shown, which working_memory and episodic_memory "
                "would add themselves to once more: leave the memories out, or the log."
            )
        if self.episode_buffers and (turns is not None or self.history != 0):
            yield (
                f"{next(iter(self.episode_buffers))} keeps whole episodes, asked without history: set "
                f"data.episodes_per_rollout (it is {episodes}) and data.history: 0 (it is {self.history})."
            )
