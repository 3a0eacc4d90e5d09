"""The settings of the data side with its environment and agents, and with what was not given decided."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import torch

from lgym import distributed
from lgym.agents import GeneralAgent, TextAgent
from lgym.data import validation
from lgym.data.data_config import DataConfig
from lgym.data.imitation.demonstrations import Demonstration, DemonstrationSource
from lgym.data.imitation.sft_sampler import load_demonstrations
from lgym.data.measuring import DEFAULTS, DEMONSTRATED, LEARNERS, OBJECTS, measured_settings
from lgym.data.replay_buffer import ReplayBuffer
from lgym.data.rollout.exploration_bonus import ExplorationBonus
from lgym.data.sizing import Choice, default_envs
from lgym.envs.make import make_env, portable
from lgym.types import Learner


class ResolvedConfig(DataConfig):
    """Settings whose agents are bound to the environments of their stages.

    Attributes:
        agents: the agent of each stage: fit, validate, test and predict.
        offers_candidates: True if the agents list the actions.
        gamma: discount per turn, of a learner that has none of its own.
        gae_lambda: the same of advantages.
    """

    agent: TextAgent  # `GeneralAgent` where none is given
    frame_skip: int  # of these, `choose_settings` decides what is not given
    num_envs: int
    update_epochs: int
    exploration_bonus: ExplorationBonus | None
    demonstrations: list[DemonstrationSource] | None
    replay: ReplayBuffer | None
    gamma: float
    gae_lambda: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._measured: dict[str, Any] = {}  # what random play decided
        unset: dict[str, Any] = dict.fromkeys(DEFAULTS) | dict.fromkeys(OBJECTS, "auto")
        self._open = {name for name, value in unset.items() if getattr(self, name, None) == value}
        vars(self).update({name: DEFAULTS[name] for name in self._open})
        if "num_envs" in self._open:
            self.num_envs = default_envs(self.turns_per_rollout)
        self._open -= {"num_minibatches"} if self.minibatch_size is not None else set()
        self.agent = self.agent or GeneralAgent()
        self.offers_candidates = True
        self.agents = self._stage_agents(self.agent)
        self._bind_agents()

    def _stage_agents(self, agent: TextAgent) -> dict[str, TextAgent]:
        """The agent of each stage: a copy wherever its environment differs."""
        evaluated = deepcopy(agent) if self.eval_env_kwargs else agent
        tested = deepcopy(agent) if self.test_env_kwargs else evaluated
        return {"fit": agent, "validate": evaluated, "predict": evaluated, "test": tested}

    def _bind_agents(self) -> None:
        """Bind each agent to the environment of its stage."""
        differing = {"validate": self.eval_env_kwargs, "test": self.test_env_kwargs}
        for stage in ("fit", *filter(differing.get, differing)):
            env = self.make_env(stage)
            self.agents[stage].bind(env)
            self.offers_candidates &= validation.offers_candidates(self.agents[stage], env, self.seed)

    def env_maker(self, stage: str, **changed: Any) -> Callable[[], gymnasium.Env]:
        """A function that makes an environment as a stage plays it: fit, validate, test or predict.

        Args:
            stage: of the run, or demonstrate.
            **changed: `max_episode_steps` or `frame_skip` in place of the run's.
        """
        kwargs = self.env_kwargs or {}
        for differing in {
            "fit": (),
            "demonstrate": (self.demonstration_env_kwargs,),
            "test": (self.eval_env_kwargs, self.test_env_kwargs),
        }.get(stage, (self.eval_env_kwargs,)):
            kwargs = kwargs | (differing or {})
        wrappers = [portable(wrapper) for wrapper in self.wrappers or ()]
        steps = {"max_episode_steps": self.max_episode_steps, "frame_skip": self.frame_skip}
        return partial(make_env, self.env, kwargs, wrappers=wrappers, **(steps | changed))

    def make_env(self, stage: str = "fit") -> gymnasium.Env:
        """An environment as a stage plays it."""
        return self.env_maker(stage)()

    def read_demonstrations(self) -> list[Demonstration]:
        """The turns of `demonstrations`, in the agent's words and of the environment as they are set now."""
        return load_demonstrations(self.demonstrations or (), self.agent, self.env_maker("demonstrate"))

    def choose_settings(self, learner: Learner, device: torch.device) -> Sequence[Choice]:
        """Let random play decide what is not given (`lgym.data.measuring`), unless the run says how much a
        rollout plays.

        Args:
            learner: of the run.
            device: on which it computes.

        Returns:
            What was decided, with reasons; nothing where nothing was.
        """
        if learner.single_pass and "update_epochs" in self._open:
            self.update_epochs = 1
        is_given = self.episodes_per_rollout is not None or self.turns_per_rollout is not None
        if is_given or self.logged_episodes is not None:
            return ()
        choices = measured_settings(
            self,
            self._open - (LEARNERS - learner.open_settings),
            lambda **changed: self.env_maker("fit", **changed)(),
            self.agent,
            learner,
            device,
        )
        choices = distributed.all_gather_object(choices)[0]  # another process may have had less time to play
        self._take({choice.name: choice.value for choice in choices})
        return choices

    def _take(self, decided: Mapping[str, Any]) -> None:
        """Set what random play decided, now or when the run began."""
        taken = self._open & decided.keys()
        for name in taken:
            self._measured[name] = decided[name]
            setattr(self, name, decided[name])
        if "max_episode_steps" in taken:  # which an agent's reference returns may depend on
            self._bind_agents()
        if "resolution" in decided and isinstance(self.agent, GeneralAgent):
            self._measured["resolution"] = decided["resolution"]
            for agent in {id(agent): agent for agent in self.agents.values()}.values():
                assert isinstance(agent, GeneralAgent)  # a copy
                agent.resolve(decided["resolution"])

    def measured_state(self) -> dict[str, Any]:
        """Settings that random play decided; plain numbers. (A bonus's counts are among the memories.)"""
        return {name: True if name in OBJECTS else value for name, value in self._measured.items()}

    def load_measured_state(self, state: Mapping[str, Any]) -> bool:
        """Go on with what a run began with, in place of what was decided just now; True if demonstrations are
        others by that."""
        if not state:
            return False
        decided = self.measured_state()
        vars(self).update({name: DEFAULTS[name] for name in self._open & self._measured.keys()})
        if "max_episode_steps" in self._measured:
            self._bind_agents()
        if "resolution" in self._measured:
            self._take({"resolution": {}})
        self._measured = {}
        self._take({name: OBJECTS[name]() if name in OBJECTS else value for name, value in state.items()})
        if self.num_envs is None:  # it was given when the run began, and is not now
            self.num_envs = default_envs(self.turns_per_rollout)
        return any(state.get(name) != decided.get(name) for name in DEMONSTRATED)
