"""The data side of a run: its environment, its agent, and the amount of play between two updates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import lightning as L
import torch
from torch.utils.data import DataLoader

from lgym import distributed
from lgym.agents import GeneralAgent, TextAgent
from lgym.data import validation
from lgym.data.data_config import DataConfig
from lgym.data.dataset import EvaluationDataset, RolloutDataset, loader, statistics, transcripts
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import SFTSampler, load_demonstrations
from lgym.data.measuring import DEFAULTS, measured_settings
from lgym.data.prompts.action_candidates import candidates_of
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.memory_prompt import MemoryPrompt, summary
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.collector import Collector
from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.rollout.exploration_bonus import ExplorationBonus
from lgym.data.rollout.training_play import TrainingPlay
from lgym.data.seeds import first_reset_seed, stream
from lgym.data.sharding import rank_state, shard_range, store_from_all_ranks
from lgym.data.sizing import Choice, default_envs
from lgym.envs.make import make_env, portable
from lgym.envs.workers import worker_envs
from lgym.rollout import Prompt
from lgym.terminal import say
from lgym.types import Episode, Learner


class RolloutDataModule(DataConfig, L.LightningDataModule):
    """Plays live episodes to fill each batch. One Lightning epoch is one rollout."""

    agent: TextAgent  # `GeneralAgent` where none is given
    frame_skip: int  # of these, `choose_settings` decides what is not given
    num_envs: int
    update_epochs: int
    minibatch_size: int
    exploration_bonus: ExplorationBonus | None

    def __init__(self, **settings: Any) -> None:
        """
        Args:
            **settings: the fields of `lgym.data.data_config.DataConfig`.
        """
        super().__init__(**settings)
        L.LightningDataModule.__init__(self)
        self._measured: dict[str, Any] = {}  # what random play decided
        self._open = {name for name in DEFAULTS if getattr(self, name) is None} - {"exploration_bonus"}
        if self.exploration_bonus == "auto":  # null is a choice too
            self._open.add("exploration_bonus")
        vars(self).update({name: DEFAULTS[name] for name in self._open})
        if "num_envs" in self._open:
            self.num_envs = default_envs(self.turns_per_rollout)
        self.prefetched_observations: Sequence[Any] = ()
        self.agent = self.agent or GeneralAgent()
        self._offers_candidates = True
        self.agents = self._bind_agents(self.agent)
        self._play: TrainingPlay | None = None
        self._dataset: RolloutDataset | None = None
        self._rollouts_before = 0
        self._restored: dict[str, Any] | None = None
        self._demonstrated: list[Demonstration] = []
        self._builders: dict[int, PromptBuilder] = {}  # by the agent's identity

    def setup(self, stage: str) -> None:
        """Refuse an agent that does not fit the policy, and read demonstrations; no model is loaded yet."""
        if not self.learner.policy.scores_candidates:
            validation.check_speaking(self.agent, self.make_env())
        elif not self._offers_candidates:
            raise validation.no_candidates(self.agent)
        self.memory_prompt().try_out()
        if stage == "fit":
            for choice in self.choose_settings(self.learner, self.trainer.strategy.root_device):
                say(choice.line)
            if self.exploration_bonus is not None:
                limit = getattr(self.trainer, "max_epochs", None)
                self.exploration_bonus.weight(0, limit)  # a wrong `anneal` is refused here
            given = bool(self.demonstrations) or self.self_imitation is not None  # an empty buffer is false
            validation.require_imitation(given, self.learner.uses_sft)
            self._demonstrated = load_demonstrations(self.demonstrations or (), self.agent, self.make_env)

    def _bind_agents(self, agent: TextAgent) -> dict[str, TextAgent]:
        """The agent as each stage plays it, bound to its environment: a copy wherever that differs."""
        evaluated = deepcopy(agent) if self.eval_env_kwargs else agent
        tested = deepcopy(agent) if self.test_env_kwargs else evaluated
        agents = {"fit": agent, "validate": evaluated, "predict": evaluated, "test": tested}
        differing = {"validate": self.eval_env_kwargs, "test": self.test_env_kwargs}
        for stage in ("fit", *filter(differing.get, differing)):
            env = self.make_env(stage)
            agents[stage].bind(env)
            self._offers_candidates &= validation.offers_candidates(agents[stage], env, self.seed)
        return agents

    def env_maker(self, stage: str, **changed: Any) -> Callable[[], gymnasium.Env]:
        """A function that makes an environment as a stage plays it: fit, validate, test or predict.

        Args:
            stage: of the run.
            **changed: `max_episode_steps` or `frame_skip` in place of the run's.
        """
        kwargs = self.env_kwargs or {}
        if stage != "fit":
            kwargs = kwargs | (self.eval_env_kwargs or {})
        if stage == "test":
            kwargs = kwargs | (self.test_env_kwargs or {})
        wrappers = [portable(wrapper) for wrapper in self.wrappers or ()]
        steps = {"max_episode_steps": self.max_episode_steps, "frame_skip": self.frame_skip}
        return partial(make_env, self.env, kwargs, wrappers=wrappers, **(steps | changed))

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
        if self.episodes_per_rollout is not None or self.turns_per_rollout is not None:
            return ()
        choices = measured_settings(
            self,
            self._open,
            lambda **changed: self.env_maker("fit", **changed)(),
            self.agent,
            learner,
            device,
        )
        self._take({choice.name: choice.value for choice in choices})
        return choices

    def _take(self, decided: Mapping[str, Any]) -> None:
        """Set what random play decided, now or when the run began."""
        for name in self._open & decided.keys():
            self._measured[name] = decided[name]
            setattr(self, name, decided[name])
        if "resolution" in decided and isinstance(self.agent, GeneralAgent):
            self._measured["resolution"] = decided["resolution"]
            agents = {id(agent): agent for agent in self.agents.values()}.values()
            for agent in agents:
                agent.resolve(decided["resolution"])

    def make_env(self, stage: str = "fit") -> gymnasium.Env:
        """An environment as a stage plays it."""
        return self.env_maker(stage)()

    def make_collector(self, stage: str, kept_transcripts: int = 0) -> Collector:
        """The environments of a stage, with their reset seeds, in this process of the run."""
        make = self.env_maker(stage)
        first_episode, episodes = shard_range(self.eval_episodes)
        count = self.num_envs if stage == "fit" else min(self.num_envs, episodes)
        envs = (
            worker_envs(make, count, self.env_timeout)
            if self.subprocess_envs
            else [make() for _ in range(count)]
        )
        runners = [EnvRunner(env, self.episode_prompts(stage), self.success_return) for env in envs]
        if stage != "fit":  # the same episodes, however many processes share them
            seed = first_reset_seed(self.seed, stage) + first_episode
            return Collector(runners, seed, kept_transcripts, prefetched=self._prefetched)
        memory, summarize = self.episodic_memory, partial(summary, self.agents[stage])
        store = None if memory is None else partial(memory.store, summarize=summarize)
        return Collector(
            runners,
            first_reset_seed(self.seed, stage, distributed.rank(), distributed.world_size()),
            kept_transcripts,
            group_size=self.group_size,
            remember=store_from_all_ranks(store),
            dynamic_sampling_groups=self.dynamic_sampling_groups,
            prefetched=self._prefetched,
        )

    def memory_prompt(self, stage: str = "fit") -> MemoryPrompt:
        """The memories as one environment's agent reads them."""
        return MemoryPrompt(self.agents[stage], self.working_memory, self.episodic_memory)

    def _sft_sampler(self) -> SFTSampler | None:
        if not self.demonstrations and self.self_imitation is None:
            return None
        policy = self.learner.policy
        return SFTSampler(
            self.agent,
            self.prompt_builder("fit"),
            policy.demonstrated,
            self._demonstrated,
            self.self_imitation,
            self.sft_batch_size,
            scores_candidates=policy.scores_candidates,
        )

    @property
    def transcripts(self) -> Sequence[Episode]:
        """The kept episodes of the rollout played last."""
        return self._play.collector.transcripts if self._play is not None else ()

    def episode_prompts(self, stage: str) -> EpisodePrompts:
        """The prompts of one environment, as a stage plays it."""
        return EpisodePrompts(
            self.agents[stage],
            self.prompt_builder(stage),
            scores_candidates=self.learner.policy.scores_candidates,
            history=self.history,
            memory=self.memory_prompt(stage),
        )

    def prompts(self, observations: Iterable[Any]) -> list[Prompt]:
        """The prompt of each of these observations, if it came first in an episode."""
        builder, memory_prompt = self.prompt_builder("fit"), self.memory_prompt()
        return [
            builder.prompt(
                memory_prompt.read(self.agent.format_observation(observation)),
                candidates_of(self.agent, observation, {}),
            )
            for observation in observations
        ]

    def _prefetched(self) -> list[Prompt]:
        return self.prompts(self.prefetched_observations)

    def train_dataloader(self) -> DataLoader:
        """Minibatches of one rollout, which is played each time the loader is iterated."""
        self._dataset = RolloutDataset(
            self.learner,
            self._training_play(),
            self,
            self.show_progress,
            self._sft_sampler(),
            rollouts=self._rollouts_before,
            limit=getattr(self.trainer, "max_epochs", None),
        )
        return loader(self._dataset)

    def val_dataloader(self) -> list[DataLoader]:
        """Fixed-seed episodes: played greedily, then sampled."""
        return [self._evaluation_loader("validate", greedy=greedy) for greedy in (True, False)]

    def test_dataloader(self) -> list[DataLoader]:
        """The same as `val_dataloader`, with other episodes."""
        return [self._evaluation_loader("test", greedy=greedy) for greedy in (True, False)]

    def predict_dataloader(self) -> DataLoader:
        """Sampled episodes with their full text, as a list of `Episode`."""
        return self._evaluation_loader("predict", kept_transcripts=self.eval_episodes, outcome=transcripts)

    def _evaluation_loader(
        self,
        stage: str,
        *,
        greedy: bool = False,
        kept_transcripts: int = 0,
        outcome: Any = statistics,
    ) -> DataLoader:
        dataset = EvaluationDataset(
            self.learner,
            partial(self.make_collector, stage, kept_transcripts),
            seed=None if greedy else stream(self.seed, stage, "actions", distributed.rank()),
            episodes=shard_range(self.eval_episodes)[1],
            progress=self.show_progress,
            outcome=outcome,
        )
        return loader(dataset)

    def state_dict(self) -> dict[str, Any]:
        """Random states, every environment's episode and the memories; plain numbers and texts."""
        if self._play is None:
            return {}
        ranks = distributed.all_gather_object(self._play.state_dict())
        played = self._rollouts_before if self._dataset is None else self._dataset.rollouts
        memories = {name: memory.state_dict() for name, memory in self._memories().items()}
        measured = self._measured
        if "exploration_bonus" in measured:  # its counts are among the memories
            measured = {**measured, "exploration_bonus": True}
        return {"ranks": ranks, "rollouts": played, "measured": measured, **memories}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore memories, which evaluation reads too; the rest when training needs it."""
        self._restored = state_dict or None
        measured = dict(state_dict.get("measured", {}))  # what a run began with, it goes on with
        if "exploration_bonus" in measured:
            measured["exploration_bonus"] = ExplorationBonus()
        if measured:  # what was decided just now goes
            vars(self).update({name: DEFAULTS[name] for name in self._open & self._measured.keys()})
            if "resolution" in self._measured:
                self._take({"resolution": {}})
            self._measured = {}
        self._take(measured)
        for name, memory in self._memories().items():
            if name in state_dict:
                memory.load_state_dict(state_dict[name])

    def _memories(self) -> dict[str, Any]:
        memories = {
            "self_imitation": self.self_imitation,
            "episodic_memory": self.episodic_memory,
            "exploration_bonus": self.exploration_bonus,
        }
        return {name: memory for name, memory in memories.items() if memory is not None}

    def teardown(self, stage: str) -> None:
        if self._play is not None and stage == "fit":
            self._play.collector.close()
            self._play = None

    def on_exception(self, exception: BaseException) -> None:
        self.teardown("fit")

    @property
    def learner(self) -> Learner:
        """The module of the run."""
        assert self.trainer is not None
        return self.trainer.lightning_module  # type: ignore[return-value]

    def show_progress(self, done: int, total: int) -> None:
        """Tell the callbacks with `on_play` how many episodes or turns have been played."""
        for callback in getattr(self.trainer, "callbacks", ()):
            if hasattr(callback, "on_play"):
                callback.on_play(done, total)

    def _training_play(self) -> TrainingPlay:
        """The environments of training, made when first needed: by then a checkpoint has been restored."""
        if self._play is None:
            self._play = TrainingPlay(self.seed, self.make_collector("fit", self.log_episodes_per_rollout))
            if self._restored is not None:
                self._rollouts_before = self._restored["rollouts"]
                if (state := rank_state(self._restored["ranks"])) is not None:
                    self._play.load_state_dict(state)
        return self._play

    def prompt_builder(self, stage: str) -> PromptBuilder:
        """The prompt builder of a stage, made when first needed: the tokenizer comes with the model."""
        agent, learner = self.agents[stage], self.learner
        if id(agent) not in self._builders:
            limits = learner.context_length, self.max_observation_tokens
            self._builders[id(agent)] = PromptBuilder(learner.tokenizer, agent.system_prompt, *limits)
        return self._builders[id(agent)]
