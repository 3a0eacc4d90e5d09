"""The data side of a run: its environment, its agent, and the amount of play between two updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import lightning as L
from torch.utils.data import DataLoader

from lgym import distributed
from lgym.agents import GeneralAgent, TextAgent
from lgym.data import stages, validation
from lgym.data.dataset import RolloutDataset, loader, warm_up_episodes
from lgym.data.imitation.best_episodes import BestEpisodeBuffer
from lgym.data.imitation.demonstrations import Demonstration, DemonstrationSource
from lgym.data.imitation.sft_sampler import SFTSampler, load_demonstrations
from lgym.data.prompts.action_candidates import candidates_of
from lgym.data.prompts.conversation import History
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.memory_prompt import MemoryPrompt
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.training_play import TrainingPlay
from lgym.data.sharding import rank_state
from lgym.envs.make import EnvWrapper, portable
from lgym.memory import EpisodicMemory, WorkingMemory
from lgym.rollout import Prompt
from lgym.types import Episode, Learner


class RolloutDataModule(L.LightningDataModule):
    """Plays live episodes to fill each batch. One Lightning epoch is one rollout."""

    def __init__(
        self,
        env: str,
        agent: TextAgent | None = None,
        env_kwargs: dict[str, Any] | None = None,
        eval_env_kwargs: dict[str, Any] | None = None,
        test_env_kwargs: dict[str, Any] | None = None,
        wrappers: list[EnvWrapper] | None = None,
        max_episode_steps: int | None = None,
        num_envs: int = 16,
        subprocess_envs: bool = False,
        env_timeout: float = 60.0,
        episodes_per_rollout: int | None = None,
        turns_per_rollout: int | None = None,
        update_epochs: int = 4,
        minibatch_size: int = 32,
        group_size: int = 1,
        dynamic_sampling_groups: int = 0,
        history: History = 0,
        max_observation_tokens: int | None = None,
        working_memory: WorkingMemory | None = None,
        episodic_memory: EpisodicMemory | None = None,
        demonstrations: list[DemonstrationSource] | None = None,
        self_imitation: BestEpisodeBuffer | None = None,
        sft_batch_size: int = 32,
        eval_episodes: int = 100,
        log_episodes_per_rollout: int = 4,
        seed: int = 0,
    ) -> None:
        """
        Args:
            env: id of a Gymnasium environment, such as Blackjack-v1; `package:Env-v0` imports the package
                first.
            agent: words of that environment, by class_path; null takes lgym.agents.GeneralAgent, for any.
            env_kwargs: keyword arguments of the environment's constructor.
            eval_env_kwargs: those in which validate, test and predict differ, such as games kept apart.
            test_env_kwargs: those in which test differs from validate, such as games that no choice was made
                by.
            wrappers: gymnasium wrappers by class_path, such as gymnasium.wrappers.ClipReward; the last is
                outermost.
            max_episode_steps: turns after which an episode is truncated; null takes the environment's own
                limit.
            num_envs: environments played together.
            subprocess_envs: run each environment in a process of its own: for those that are slow, or that
                may crash or hang. A process that does is replaced, and its episode dropped and begun anew.
            env_timeout: seconds after which a process that has not answered hangs; it makes its environment
                in them.
            episodes_per_rollout: whole episodes played between two updates. Give this or turns_per_rollout.
            turns_per_rollout: turns played between two updates, over all environments; a multiple of
                num_envs. Episodes continue in the next rollout.
            update_epochs: passes over each rollout.
            minibatch_size: distinct prompts in a minibatch, with every turn that was played from them; of a
                text-generating policy, distinct responses, with every turn that gave them.
            group_size: episodes in a row from one reset seed in training, which grouped estimators (GRPO)
                compare. A divisor of episodes_per_rollout.
            dynamic_sampling_groups: the most groups that a rollout plays beside its own, one for each whose
                returns were all the same (DAPO).
            history: earlier turns of its episode that a prompt shows: 0 for none, a number, or `full`. Of
                more than the model's context takes, the older half is left out at once.
            max_observation_tokens: limit of one observation; the middle of a longer one is left out, and
                counted. Null is as many as the model's context leaves beside the system prompt.
            working_memory: shows the last turns of the episode above each observation:
                lgym.memory.WorkingMemory.
            episodic_memory: stores the turns of training's episodes, and shows those that are like the
                observation: lgym.memory.EpisodicMemory. Evaluation reads it and stores nothing.
            demonstrations: turns for supervised learning, by class_path: lgym.data.JsonlDemonstrations,
                lgym.data.ExpertDemonstrations. The model's `sft` has their weight.
            self_imitation: supervised learning from the run's own best episodes: lgym.data.BestEpisodeBuffer.
            sft_batch_size: demonstrated turns beside each minibatch.
            eval_episodes: episodes that validate and test play in each mode, greedy and sampled; predict as
                many.
            log_episodes_per_rollout: episodes of a rollout whose text goes to TensorBoard.
            seed: of everything random on this side: reset seeds, sampled actions, the order of minibatches.
        """
        super().__init__()
        self.env = env
        self.agent = GeneralAgent() if agent is None else agent
        self.env_kwargs = env_kwargs
        self.eval_env_kwargs = eval_env_kwargs
        self.test_env_kwargs = test_env_kwargs
        self.wrappers = [portable(wrapper) for wrapper in wrappers or []]
        self.max_episode_steps = max_episode_steps
        self.num_envs = num_envs
        self.subprocess_envs = subprocess_envs
        self.env_timeout = env_timeout
        self.episodes_per_rollout = episodes_per_rollout
        self.turns_per_rollout = turns_per_rollout
        self.update_epochs = update_epochs
        self.minibatch_size = minibatch_size
        self.group_size = group_size
        self.dynamic_sampling_groups = dynamic_sampling_groups
        self.history = history
        self.max_observation_tokens = max_observation_tokens
        self.working_memory = working_memory
        self.episodic_memory = episodic_memory
        self.demonstrations = demonstrations or []
        self.self_imitation = self_imitation
        self.sft_batch_size = sft_batch_size
        self.eval_episodes = eval_episodes
        self.log_episodes_per_rollout = log_episodes_per_rollout
        self.seed = seed
        validation.require_sound(self)
        self.prefetched_observations: Sequence[Any] = ()
        self.agents = stages.agents_of(self)
        self._offers_candidates = stages.bind_agents(self)
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
            given = bool(self.demonstrations) or self.self_imitation is not None  # an empty buffer is false
            validation.require_imitation(given, self.learner.uses_sft)
            self._demonstrated = load_demonstrations(self.demonstrations, self.agent, self.make_env)

    def make_env(self, stage: str = "fit") -> gymnasium.Env:
        """An environment as a stage plays it: fit, validate, test or predict."""
        return stages.env_maker(self, stage)()

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

    def train_dataloader(self) -> DataLoader:
        """Minibatches of one rollout, which is played each time the loader is iterated."""
        play = self._training_play()
        self._dataset = RolloutDataset(
            self.learner,
            play.collector,
            play.rngs["actions"],
            play.rngs["order"],
            episodes=self.episodes_per_rollout,
            turns=self.turns_per_rollout,
            update_epochs=self.update_epochs,
            minibatch_size=self.minibatch_size,
            progress=self.show_progress,
            sft_sampler=self._sft_sampler(),
            warm_up_episodes=warm_up_episodes(self.num_envs, self.group_size, self.episodes_per_rollout),
            rollouts=self._rollouts_before,
            limit=getattr(self.trainer, "max_epochs", None),
        )
        return loader(self._dataset)

    def val_dataloader(self) -> list[DataLoader]:
        """Fixed-seed episodes: played greedily, then sampled."""
        return [stages.evaluation_loader(self, "validate", greedy=greedy) for greedy in (True, False)]

    def test_dataloader(self) -> list[DataLoader]:
        """The same as `val_dataloader`, with other episodes."""
        return [stages.evaluation_loader(self, "test", greedy=greedy) for greedy in (True, False)]

    def predict_dataloader(self) -> DataLoader:
        """Sampled episodes with their full text, as a list of `Episode`."""
        return stages.evaluation_loader(
            self, "predict", outcome=lambda collector, rollout: collector.transcripts
        )

    def state_dict(self) -> dict[str, Any]:
        """Random states, every environment's episode and the memories; plain numbers and texts."""
        if self._play is None:
            return {}
        ranks = distributed.all_gather_object(self._play.state_dict())
        played = self._rollouts_before if self._dataset is None else self._dataset.rollouts
        memories = {name: memory.state_dict() for name, memory in self._memories().items()}
        return {"ranks": ranks, "rollouts": played, **memories}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore memories, which evaluation reads too; the rest when training needs it."""
        self._restored = state_dict or None
        for name, memory in self._memories().items():
            if name in state_dict:
                memory.load_state_dict(state_dict[name])

    def _memories(self) -> dict[str, Any]:
        memories = {"self_imitation": self.self_imitation, "episodic_memory": self.episodic_memory}
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
        """Show how many episodes or turns have been played."""
        bar: Any = self.trainer.progress_bar_callback if self.trainer is not None else None
        if hasattr(bar, "on_play"):
            bar.on_play(done, total)

    def _training_play(self) -> TrainingPlay:
        """The environments of training, made when first needed: by then a checkpoint has been restored."""
        if self._play is None:
            self._play = TrainingPlay(
                self.seed, stages.make_collector(self, "fit", self.log_episodes_per_rollout)
            )
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
