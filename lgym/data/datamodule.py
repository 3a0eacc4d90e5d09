"""The data side of a run: its environment, its agent, and the amount of play between two updates."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from lgym import distributed
from lgym.data import validation
from lgym.data.dataset import EvaluationDataset, RolloutDataset, loader, statistics, transcripts
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import SFTSampler
from lgym.data.logged.collector import LoggedCollector
from lgym.data.logged.episodes import LoggedEpisode, read_episodes
from lgym.data.logged.play import LoggedPlay
from lgym.data.prompts.action_candidates import candidates_of
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.memory_prompt import MemoryPrompt, summary
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.replay_buffer import ReplayBuffer
from lgym.data.resolved_config import ResolvedConfig
from lgym.data.rollout.collector import Collector, PlayProgress
from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.rollout.training_play import TrainingPlay
from lgym.data.seeds import first_reset_seed, stream
from lgym.data.sharding import rank_state, shard_range, store_from_all_ranks
from lgym.envs.workers import worker_envs
from lgym.rollout import Prompt
from lgym.terminal import say
from lgym.types import Episode, Learner


class RolloutDataModule(ResolvedConfig, L.LightningDataModule):
    """Plays live episodes to fill each batch. One Lightning epoch is one rollout."""

    def __init__(self, **settings: Any) -> None:
        """
        Args:
            **settings: the fields of `lgym.data.data_config.DataConfig`.
        """
        super().__init__(**settings)
        L.LightningDataModule.__init__(self)
        self.prefetched_observations: Sequence[Any] = ()
        self._play: TrainingPlay | None = None
        self._dataset: RolloutDataset | None = None
        self._rollouts_before = 0
        self._restored: dict[str, Any] | None = None
        self._demonstrated: list[Demonstration] | None = []  # `None` where they are to be read anew
        self.logged: list[LoggedEpisode] = []  # in place of play
        self._builders: dict[int, PromptBuilder] = {}  # by the agent's identity

    def setup(self, stage: str) -> None:
        """Refuse an agent that does not fit the policy, and read demonstrations; no model is loaded yet."""
        if not self.learner.policy.scores_candidates:
            validation.check_speaking(self.agent, self.make_env())
        elif not self.offers_candidates:
            raise validation.no_candidates(self.agent)
        self.memory_prompt().try_out()
        passes = {name for name in validation.PASSES if name not in self._open and getattr(self, name)}
        validation.require_replay(self.replay is not None, self.learner, passes)
        if stage == "fit":
            assert self.trainer is not None
            for choice in self.choose_settings(self.learner, self.trainer.strategy.root_device):
                say(choice.line)
            self._provide_replay()
            if self.exploration_bonus is not None:
                limit = getattr(self.trainer, "max_epochs", None)
                self.exploration_bonus.weight(0, limit)  # a wrong `anneal` is refused here
            if self.logged_episodes is not None:
                self.logged = self._read_log(self.logged_episodes)
            given = bool(self.demonstrations or self.episode_buffers)
            validation.require_imitation(given, self.learner, self.sft_turns_per_pass)
            if self.dagger is not None:
                self.dagger.try_out(self.agent, self.env_maker("fit"), first_reset_seed(self.seed, "fit"))
            self._demonstrated = self.read_demonstrations()

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
        if self._demonstrated is None:
            self._demonstrated = self.read_demonstrations()
        if not self._demonstrated and not self.episode_buffers:
            return None
        policy = self.learner.policy
        prompts = partial(EpisodePrompts, self.agent, self.prompt_builder("fit"), history=self.history)
        if self.dagger is not None:
            asked = prompts(scores_candidates=policy.scores_candidates)
            self.dagger.attach(self.env_maker("fit"), asked, self.memory_prompt().remembers)
        return SFTSampler(
            self.agent,
            prompts,
            policy.demonstrated,
            self._demonstrated,
            list(self.episode_buffers.values()),
            self.sft_batch_size,
            scores_candidates=policy.scores_candidates,
            memory=MemoryPrompt(self.agent, self.working_memory),
            turns_per_pass=self.sft_turns_per_pass,
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
        return self._evaluation_loaders("validate")

    def test_dataloader(self) -> list[DataLoader]:
        """The same as `val_dataloader`, with other episodes."""
        return self._evaluation_loaders("test")

    def predict_dataloader(self) -> DataLoader:
        """Sampled episodes with their full text, as a list of `Episode`."""
        return self._evaluation_loader("predict", kept_transcripts=self.eval_episodes, outcome=transcripts)

    def _evaluation_loaders(self, stage: str) -> list[DataLoader]:
        return [
            self._evaluation_loader(stage, greedy=greedy, margin=self.eval_ci) for greedy in (True, False)
        ]

    def _evaluation_loader(
        self,
        stage: str,
        *,
        greedy: bool = False,
        kept_transcripts: int = 0,
        outcome: Any = statistics,
        margin: float | None = None,
    ) -> DataLoader:
        dataset = EvaluationDataset(
            self.learner,
            partial(self.make_collector, stage, kept_transcripts),
            seed=None if greedy else stream(self.seed, stage, "actions", distributed.rank()),
            episodes=shard_range(self.eval_episodes)[1],
            progress=self.show_progress,
            outcome=outcome,
            margin=margin,
        )
        return loader(dataset)

    def state_dict(self) -> dict[str, Any]:
        """Random states, every environment's episode and the memories; plain numbers and texts."""
        if self._play is None:
            return {}
        ranks = distributed.all_gather_object(self._play.state_dict())
        played = self._rollouts_before if self._dataset is None else self._dataset.rollouts
        memories = {name: memory.state_dict() for name, memory in self._memories().items()}
        return {"ranks": ranks, "rollouts": played, "measured": self.measured_state(), **memories}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore memories, which evaluation reads too; the rest when training needs it."""
        self._restored = state_dict or None
        if self.load_measured_state(state_dict.get("measured", {})):
            self._demonstrated = None
        self._provide_replay()
        for name, memory in self._memories().items():
            if name in state_dict:
                memory.load_state_dict(state_dict[name])

    def _provide_replay(self) -> None:
        if self.learner.uses_replay and self.replay is None:
            self.replay = ReplayBuffer()

    def _memories(self) -> dict[str, Any]:
        others = {"episodic_memory": self.episodic_memory, "exploration_bonus": self.exploration_bonus}
        memories = {**self.episode_buffers, **others}
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

    @property
    def minibatches(self) -> int | None:
        """The number of minibatches of the rollout that is learned from."""
        return None if self._dataset is None else self._dataset.minibatches

    def show_progress(self, progress: PlayProgress) -> None:
        """Tell the callbacks with `on_play` how far a rollout or an evaluation is."""
        for callback in getattr(self.trainer, "callbacks", ()):
            if hasattr(callback, "on_play"):
                callback.on_play(progress)

    def _training_play(self) -> TrainingPlay:
        """The environments of training, made when first needed: by then a checkpoint has been restored."""
        if self._play is None:
            if self.logged:
                self._play = LoggedPlay(self.seed, self._logged_collector(), self.replay)
            else:
                collector = self.make_collector("fit", self.log_episodes_per_rollout)
                self._play = TrainingPlay(self.seed, collector, self.replay)
            if self._restored is not None:
                self._rollouts_before = self._restored["rollouts"]
                if (state := rank_state(self._restored["ranks"])) is not None:
                    self._play.load_state_dict(state)
        return self._play

    def _read_log(self, paths: Sequence[str]) -> list[LoggedEpisode]:
        """This process's episodes of the files; all of them fit into the replay buffer."""
        validation.require_value_learner(self.learner.uses_replay)
        episodes = read_episodes(paths, self.agent)
        first, count = shard_range(len(episodes))
        assert self.replay is not None
        validation.require_capacity(self.replay.capacity, episodes[first : first + count], len(episodes))
        return episodes[first : first + count]

    def _logged_collector(self) -> LoggedCollector:
        gamma = getattr(self.learner, "gamma", self.gamma)
        return LoggedCollector(
            self.logged, self.episode_prompts("fit"), self.learner.policy.demonstrated, gamma
        )

    def prompt_builder(self, stage: str) -> PromptBuilder:
        """The prompt builder of a stage, made when first needed: the tokenizer comes with the model."""
        agent, learner = self.agents[stage], self.learner
        if id(agent) not in self._builders:
            limits = learner.context_length, self.max_observation_tokens
            self._builders[id(agent)] = PromptBuilder(learner.tokenizer, agent.system_prompt, *limits)
        return self._builders[id(agent)]
