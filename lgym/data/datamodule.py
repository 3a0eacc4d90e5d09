"""The data side of a run: which environment, which agent, how much is played between two updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import lightning as L
import numpy as np
from torch.utils.data import DataLoader

from lgym import distributed
from lgym.agents import GeneralAgent, TextAgent
from lgym.data import stages, validation
from lgym.data.dataset import EvaluationDataset, RolloutDataset, loader, warm_up_episodes
from lgym.data.imitation.best_episodes import BestEpisodeBuffer
from lgym.data.imitation.demonstrations import Demonstration, DemonstrationSource
from lgym.data.imitation.sft_sampler import SFTSampler, load_demonstrations
from lgym.data.prompts.action_candidates import candidates_of
from lgym.data.prompts.conversation import History
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.memory_prompt import MemoryPrompt, summary
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.data.rollout.collector import Collector
from lgym.data.rollout.env_runner import EnvRunner
from lgym.data.seeds import first_reset_seed, stream
from lgym.data.sharding import rank_state, shard_range, store_from_all_ranks
from lgym.envs.make import EnvWrapper, portable
from lgym.envs.workers import worker_envs
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
            env: id of a Gymnasium environment, such as Blackjack-v1; `package:Env-v0` imports the package first.
            agent: the words of that environment, by class_path; null takes lgym.agents.GeneralAgent, for any.
            env_kwargs: keyword arguments of the environment's constructor.
            eval_env_kwargs: of these, what validate, test and predict have otherwise, such as games kept apart.
            test_env_kwargs: what test has otherwise than validate, such as games that no choice was made by.
            wrappers: put round the environment, the last outermost, by class_path, such as gymnasium.wrappers.ClipReward.
            max_episode_steps: turns after which an episode is truncated; null takes the environment's own limit.
            num_envs: environments played together.
            subprocess_envs: gives each a process of its own: for environments that are slow, or that may crash or hang. A worker
                that does is replaced, and its episode dropped and begun anew.
            env_timeout: seconds after which a worker that has not answered hangs; also its first answer, for which it
                makes the environment.
            episodes_per_rollout: whole episodes played between two updates. Give this or turns_per_rollout.
            turns_per_rollout: turns played between two updates, over all environments; a multiple of num_envs. Episodes
                go on in the next rollout.
            update_epochs: passes over each rollout.
            minibatch_size: distinct prompts in a minibatch, with every turn that was played from them; of a policy that
                speaks, distinct replies to them, with every turn that gave them.
            group_size: episodes in a row that start from the same reset seed while training: what grouped estimators (GRPO)
                compare. A divisor of episodes_per_rollout.
            dynamic_sampling_groups: groups that a rollout may play beside its own, one for each whose returns were all the same.
            history: how many earlier turns of its episode a prompt shows: 0 for none, a number, or `full`. What does not fit
                the model's context is left out, the older half of it at once.
            max_observation_tokens: of one observation: the middle of a longer one is left out, and counted. null is as many
                as the model's context leaves beside the system prompt.
            working_memory: shows the last turns of the episode above each observation, as the agent's `summarize` and
                `render_memory` word them: lgym.memory.WorkingMemory.
            episodic_memory: stores what happened in training's episodes, and shows what was like the observation:
                lgym.memory.EpisodicMemory. Evaluation reads it and stores nothing.
            demonstrations: turns to imitate, by class_path: lgym.data.JsonlDemonstrations, lgym.data.ExpertDemonstrations. They count as the model's
                `sft_coef` says, and are asked without history and without memories.
            self_imitation: imitates the run's own best episodes too, with the memories that they were shown: lgym.data.BestEpisodeBuffer;
                needs episodes_per_rollout.
            sft_batch_size: turns to imitate beside each minibatch.
            eval_episodes: episodes that validate and test play in each mode, greedy and sampled; predict writes as many.
            log_episodes_per_rollout: of how many episodes a rollout to keep the text for TensorBoard.
            seed: of everything random on this side: reset seeds, no two stages' the same, sampled actions, the order of
                minibatches.
        """
        super().__init__()
        self.working_memory, self.episodic_memory = working_memory, episodic_memory
        self.demonstrations, self.self_imitation, self.sft_batch_size = demonstrations or [], self_imitation, sft_batch_size
        self.history, self.group_size, self.dynamic_sampling_groups = history, group_size, dynamic_sampling_groups
        self.max_observation_tokens = max_observation_tokens
        self.env, self.env_kwargs, self.max_episode_steps = env, env_kwargs, max_episode_steps
        self.wrappers = [portable(wrapper) for wrapper in wrappers or []]
        self.agent = GeneralAgent() if agent is None else agent
        self.num_envs, self.subprocess_envs, self.env_timeout = num_envs, subprocess_envs, env_timeout
        self.episodes_per_rollout, self.turns_per_rollout = episodes_per_rollout, turns_per_rollout
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size
        self.eval_episodes, self.log_episodes_per_rollout = eval_episodes, log_episodes_per_rollout
        self.eval_env_kwargs, self.test_env_kwargs, self.seed = eval_env_kwargs, test_env_kwargs, seed
        validation.require_sound(self)
        self._rngs: dict[str, np.random.Generator] = {}  # by their purpose
        self._collector: Collector | None = None
        self._dataset: RolloutDataset | None = None
        self._rollouts_before = 0
        self._restored: dict[str, Any] | None = None
        self._demonstrated: list[Demonstration] = []
        self._builders: dict[int, PromptBuilder] = {}  # by the agent's identity
        self.prefetched_observations: Sequence[Any] = ()
        self.agents = stages.agents_of(self)
        self._offers_candidates = stages.bind_agents(self)

    def setup(self, stage: str) -> None:
        """Refuses an agent that does not go with the policy, and reads demonstrations; no model is loaded yet."""
        if not self._learner.policy.scores_candidates:
            validation.check_speaking(self.agent, self.make_env())
        elif not self._offers_candidates:
            raise validation.no_candidates(self.agent)
        self.memory_prompt().try_out()
        if stage == "fit":
            given = bool(self.demonstrations) or self.self_imitation is not None  # an empty buffer is false
            validation.require_imitation(given, self._learner.uses_sft)
            self._demonstrated = load_demonstrations(self.demonstrations, self.agent, self.make_env)

    def make_env(self) -> gymnasium.Env:
        """An environment as training plays it."""
        return self.env_maker("fit")()

    def env_maker(self, stage: str) -> Callable[[], gymnasium.Env]:
        """Makes an environment as a stage plays it: fit, validate, test or predict."""
        return stages.env_maker(self, stage)

    def agent_of(self, stage: str) -> TextAgent:
        """The words of the environment as that stage plays it."""
        return self.agents[stage]

    def memory_prompt(self, stage: str = "fit") -> MemoryPrompt:
        """The memories as one environment's agent reads them."""
        return MemoryPrompt(self.agent_of(stage), self.working_memory, self.episodic_memory)

    def _sft_sampler(self) -> SFTSampler | None:
        if not self.demonstrations and self.self_imitation is None:
            return None
        policy = self._learner.policy
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
        return self._collector.transcripts if self._collector is not None else ()

    def prompts(self, observations: Iterable[Any]) -> list[Prompt]:
        """The prompt of each of these observations, if it came first in an episode."""
        builder, memory_prompt = self.prompt_builder("fit"), self.memory_prompt()
        return [
            builder.prompt(
                memory_prompt.read(self.agent.format_observation(observation)), candidates_of(self.agent, observation, {})
            )
            for observation in observations
        ]

    def prefetched(self) -> list[Prompt]:
        """The prompts that the policy computes ahead of every rollout and evaluation: `prefetched_observations`."""
        return self.prompts(self.prefetched_observations)

    def train_dataloader(self) -> DataLoader:
        """Plays and hands out a rollout each time it is iterated."""
        collector = self._training_collector()
        self._dataset = RolloutDataset(
            self._learner,
            collector,
            self._rngs["actions"],
            self._rngs["order"],
            episodes=self.episodes_per_rollout,
            turns=self.turns_per_rollout,
            update_epochs=self.update_epochs,
            minibatch_size=self.minibatch_size,
            progress=self._progress,
            sft_sampler=self._sft_sampler(),
            warm_up_episodes=warm_up_episodes(self.num_envs, self.group_size, self.episodes_per_rollout),
            rollouts=self._rollouts_before,
            limit=getattr(self.trainer, "max_epochs", None),
        )
        return loader(self._dataset)

    def val_dataloader(self) -> list[DataLoader]:
        """Fixed-seed episodes: played greedily, then sampled."""
        return [self._evaluation("validate", greedy=greedy) for greedy in (True, False)]

    def test_dataloader(self) -> list[DataLoader]:
        """As `val_dataloader`, with other episodes."""
        return [self._evaluation("test", greedy=greedy) for greedy in (True, False)]

    def predict_dataloader(self) -> DataLoader:
        """Sampled episodes with their full text, as a list of `Episode`."""
        return self._evaluation("predict", self.eval_episodes, lambda c, rollout: c.transcripts)

    def state_dict(self) -> dict[str, Any]:
        """Random state, every environment's position and what is remembered; plain numbers and texts."""
        if self._collector is None:
            return {}
        self_imitation = {} if self.self_imitation is None else {"self_imitation": self.self_imitation.state_dict()}
        played = self._rollouts_before if self._dataset is None else self._dataset.rollouts
        rngs = {purpose: rng.bit_generator.state for purpose, rng in self._rngs.items()}
        own = {"rng": rngs, "collector": self._collector.state_dict()}
        state = {"ranks": distributed.all_gather_object(own), "rollouts": played}
        memory = {} if self.episodic_memory is None else {"episodic_memory": self.episodic_memory.state_dict()}
        return {**state, **self_imitation, **memory}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what is remembered, which evaluation reads too; the rest when training needs it."""
        self._restored = state_dict or None
        if self.episodic_memory is not None and "episodic_memory" in state_dict:
            self.episodic_memory.load_state_dict(state_dict["episodic_memory"])

    def teardown(self, stage: str) -> None:
        if self._collector is not None and stage == "fit":
            self._collector.close()
            self._collector = None

    def on_exception(self, exception: BaseException) -> None:
        self.teardown("fit")

    @property
    def _learner(self) -> Learner:
        assert self.trainer is not None
        return self.trainer.lightning_module  # type: ignore[return-value]

    def _progress(self, done: int, total: int) -> None:
        bar: Any = self.trainer.progress_bar_callback if self.trainer is not None else None
        if hasattr(bar, "on_play"):
            bar.on_play(done, total)

    def _training_collector(self) -> Collector:
        """Made when first needed: by then a checkpoint's state has been handed over."""
        if self._collector is None:
            streams = {purpose: stream(self.seed, "fit", purpose, distributed.rank()) for purpose in ("actions", "order")}
            self._rngs = {purpose: np.random.default_rng(source) for purpose, source in streams.items()}
            self._collector = self._make_collector("fit", self.log_episodes_per_rollout)
            if self._restored is not None:
                if (own := rank_state(self._restored["ranks"])) is not None:
                    for purpose, rng in self._rngs.items():
                        rng.bit_generator.state = own["rng"][purpose]
                    self._collector.load_state_dict(own["collector"])
                self._rollouts_before = self._restored["rollouts"]
                if self.self_imitation is not None and "self_imitation" in self._restored:
                    self.self_imitation.load_state_dict(self._restored["self_imitation"])
        return self._collector

    def prompt_builder(self, stage: str) -> PromptBuilder:
        """Made when first needed: the tokenizer comes with the model."""
        agent, learner = self.agent_of(stage), self._learner
        if id(agent) not in self._builders:
            limits = learner.context_length, self.max_observation_tokens
            self._builders[id(agent)] = PromptBuilder(learner.tokenizer, agent.system_prompt, *limits)
        return self._builders[id(agent)]

    def _make_collector(self, stage: str, kept_transcripts: int) -> Collector:
        agent, builder = self.agent_of(stage), self.prompt_builder(stage)
        start, episodes = shard_range(self.eval_episodes)
        count = self.num_envs if stage == "fit" else min(self.num_envs, episodes)
        make = self.env_maker(stage)
        envs = worker_envs(make, count, self.env_timeout) if self.subprocess_envs else [make() for _ in range(count)]
        settings = {"scores_candidates": self._learner.policy.scores_candidates, "history": self.history}
        runners = [
            EnvRunner(env, EpisodePrompts(agent, builder, **settings, memory=self.memory_prompt(stage))) for env in envs
        ]
        if stage != "fit":  # the same episodes, however many processes share them
            seed = first_reset_seed(self.seed, stage) + start
            return Collector(runners, seed, kept_transcripts, prefetched=self.prefetched)
        memory = self.episodic_memory
        return Collector(
            runners,
            first_reset_seed(self.seed, stage, distributed.rank(), distributed.world_size()),
            kept_transcripts,
            group_size=self.group_size,
            remember=store_from_all_ranks(
                None if memory is None else partial(memory.store, summarize=partial(summary, agent))
            ),
            dynamic_sampling_groups=self.dynamic_sampling_groups,
            prefetched=self.prefetched,
        )

    def _evaluation(self, stage: str, kept: int = 0, outcome: Any = None, *, greedy: bool = False) -> DataLoader:
        dataset = EvaluationDataset(
            self._learner,
            lambda: self._make_collector(stage, kept),
            seed=None if greedy else stream(self.seed, stage, "actions", distributed.rank()),
            episodes=shard_range(self.eval_episodes)[1],
            progress=self._progress,
            outcome=outcome,
        )
        return loader(dataset)
