"""The data side of a run: which environment, which agent, how much is played between two updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import lightning as L
import numpy as np
from torch.utils.data import DataLoader

from lgym.agents import GeneralAgent, TextAgent
from lgym.batch import Context
from lgym.data import checks
from lgym.data.chat import ContextBuilder
from lgym.data.collector import Collector
from lgym.data.conversation import History
from lgym.data.dataset import EvaluationDataset, RolloutDataset, loader
from lgym.data.demonstrations import Demonstration, DemonstrationSource
from lgym.data.imitation import Imitation, load_demonstrations
from lgym.data.questions import candidates_of
from lgym.data.replay import BestEpisodes
from lgym.data.slot import Slot
from lgym.envs.make import EnvWrapper, make_env
from lgym.envs.workers import worker_envs
from lgym.types import Episode, Learner

STAGES = {"fit": 0, "validate": 1, "test": 2, "predict": 3}
"""Each stage draws its reset seeds and its sampling from a stream of its own."""


class RolloutDataModule(L.LightningDataModule):
    """Plays live episodes to fill each batch. One Lightning epoch is one rollout."""

    def __init__(
        self,
        env: str,
        agent: TextAgent | None = None,
        env_kwargs: dict[str, Any] | None = None,
        eval_env_kwargs: dict[str, Any] | None = None,
        wrappers: list[EnvWrapper] | None = None,
        max_episode_steps: int | None = None,
        num_envs: int = 16,
        workers: bool = False,
        worker_timeout: float = 60.0,
        episodes_per_rollout: int | None = None,
        turns_per_rollout: int | None = None,
        update_epochs: int = 4,
        minibatch_size: int = 32,
        group_size: int = 1,
        history: History = 0,
        demonstrations: list[DemonstrationSource] | None = None,
        replay: BestEpisodes | None = None,
        imitation_size: int = 32,
        eval_episodes: int = 100,
        transcripts_per_rollout: int = 4,
        seed: int = 0,
    ) -> None:
        """
        Args:
            env: id of a Gymnasium environment, such as Blackjack-v1; `package:Env-v0` imports the package first.
            agent: the words of that environment, by class_path; null takes lgym.agents.GeneralAgent, for any.
            env_kwargs: keyword arguments of the environment's constructor.
            eval_env_kwargs: of these, what validate, test and predict have otherwise, such as games kept apart.
            wrappers: put round the environment, the last outermost, by class_path, such as gymnasium.wrappers.ClipReward.
            max_episode_steps: turns after which an episode is truncated; null takes the environment's own limit.
            num_envs: environments played together.
            workers: gives each a process of its own: for environments that are slow, or that may crash or hang. A worker
                that does is replaced, and its episode dropped and begun anew.
            worker_timeout: seconds after which a worker that has not answered hangs; also its first answer, for which it
                makes the environment.
            episodes_per_rollout: whole episodes played between two updates. Give this or turns_per_rollout.
            turns_per_rollout: turns played between two updates, over all environments; a multiple of num_envs. Episodes
                go on in the next rollout.
            update_epochs: passes over each rollout.
            minibatch_size: distinct prompts in a minibatch, with every turn that was played from them; of a policy that
                speaks, distinct replies to them, with every turn that gave them.
            group_size: episodes in a row that start from the same reset seed while training: what grouped estimators (GRPO)
                compare. A divisor of episodes_per_rollout.
            history: how many earlier turns of its episode a prompt shows: 0 for none, a number, or `full`. What does not fit
                the model's context is left out, the oldest first.
            demonstrations: turns to imitate, by class_path: lgym.data.JsonLines, lgym.data.Expert. They count as the model's
                `sft_coef` says, and are asked without history.
            replay: imitates the run's own best episodes too: lgym.data.BestEpisodes; needs episodes_per_rollout.
            imitation_size: turns to imitate beside each minibatch.
            eval_episodes: episodes that validate and test play in each mode, greedy and sampled; predict writes as many.
            transcripts_per_rollout: of how many episodes a rollout to keep the text for TensorBoard.
            seed: of everything random on this side: reset seeds, sampled actions, the order of minibatches.
        """
        super().__init__()
        checks.require_positive(
            num_envs=num_envs,
            update_epochs=update_epochs,
            minibatch_size=minibatch_size,
            imitation_size=imitation_size,
            group_size=group_size,
            eval_episodes=eval_episodes,
        )
        checks.require_one_amount(episodes_per_rollout, turns_per_rollout, num_envs)
        checks.require_whole_groups(group_size, episodes_per_rollout)
        checks.require_history(history)
        checks.require_seconds(worker_timeout=worker_timeout)
        self.history: History = history
        self.demonstrations, self.replay, self.imitation_size = demonstrations or [], replay, imitation_size
        checks.require_replayable(replay, episodes_per_rollout, history)
        self.group_size = group_size
        self.env, self.env_kwargs, self.max_episode_steps = env, env_kwargs, max_episode_steps
        self.eval_env_kwargs = eval_env_kwargs
        self.wrappers = wrappers or []
        self.agent = GeneralAgent() if agent is None else agent
        self.num_envs, self.workers, self.worker_timeout = num_envs, workers, worker_timeout
        self.episodes_per_rollout, self.turns_per_rollout = episodes_per_rollout, turns_per_rollout
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size
        self.eval_episodes = eval_episodes
        self.transcripts_per_rollout = transcripts_per_rollout
        self.seed = seed
        self._rng = np.random.default_rng(self._stream("fit"))
        self._collector: Collector | None = None
        self._dataset: RolloutDataset | None = None
        self._rollouts_before = 0
        self._restored: dict[str, Any] | None = None
        self._demonstrated: list[Demonstration] = []
        self._builder: ContextBuilder | None = None
        first = self._make_env()
        self.agent.bind(first)
        self._offers_candidates = checks.offers_candidates(self.agent, first, seed)

    def setup(self, stage: str) -> None:
        """Refuses an agent that does not go with the policy, and reads demonstrations; no model is loaded yet."""
        if not self._learner.chooses:
            checks.check_speaking(self.agent, self._make_env())
        elif not self._offers_candidates:
            raise checks.no_candidates(self.agent)
        if stage == "fit":
            given = bool(self.demonstrations) or self.replay is not None  # an empty buffer is false
            checks.require_imitation(given, self._learner.imitates)
            self._demonstrated = load_demonstrations(self.demonstrations, self.agent, self._make_env)

    def _make_env(self) -> gymnasium.Env:
        return self._env_maker("fit")()

    def _env_maker(self, stage: str) -> Callable[[], gymnasium.Env]:
        evaluated = (self.eval_env_kwargs or {}) if stage != "fit" else {}
        kwargs = {**(self.env_kwargs or {}), **evaluated}
        return partial(make_env, self.env, kwargs, self.max_episode_steps, self.wrappers)

    def _imitation(self) -> Imitation | None:
        if not self.demonstrations and self.replay is None:
            return None
        with self._learner.acting() as policy:
            return Imitation(
                self.agent,
                self._context_builder(),
                policy.demonstrated,
                self._demonstrated,
                self.replay,
                self.imitation_size,
                chooses=self._learner.chooses,
            )

    @property
    def transcripts(self) -> Sequence[Episode]:
        """The kept episodes of the rollout played last."""
        return self._collector.transcripts if self._collector is not None else ()

    def contexts(self, observations: Iterable[Any]) -> list[Context]:
        """What the policy would be asked at each of these observations."""
        builder = self._context_builder()
        return [
            builder.context(self.agent.format_observation(observation), candidates_of(self.agent, observation, {}))
            for observation in observations
        ]

    def train_dataloader(self) -> DataLoader:
        """Plays and hands out a rollout each time it is iterated."""
        collector = self._training_collector()
        self._dataset = RolloutDataset(
            self._learner,
            collector,
            self._rng,
            episodes=self.episodes_per_rollout,
            turns=self.turns_per_rollout,
            update_epochs=self.update_epochs,
            minibatch_size=self.minibatch_size,
            progress=self._progress,
            imitation=self._imitation(),
            warm_up_episodes=self._warm_up_episodes,
            rollouts=self._rollouts_before,
        )
        return loader(self._dataset)

    @property
    def _warm_up_episodes(self) -> int | None:
        """One in each environment, in whole groups."""
        if self.episodes_per_rollout is None:
            return None
        groups = -(-self.num_envs // self.group_size)
        return min(groups * self.group_size, self.episodes_per_rollout)

    def val_dataloader(self) -> list[DataLoader]:
        """Fixed-seed episodes: played greedily, then sampled."""
        return self._evaluation("validate")

    def test_dataloader(self) -> list[DataLoader]:
        """As `val_dataloader`, with other episodes."""
        return self._evaluation("test")

    def predict_dataloader(self) -> DataLoader:
        """Sampled episodes with their full text, as a list of `Episode`."""
        dataset = EvaluationDataset(
            self._learner,
            lambda: self._make_collector("predict", self.eval_episodes),
            seed=self._stream("predict"),
            episodes=self.eval_episodes,
            progress=self._progress,
            outcome=lambda collector, rollout: collector.transcripts,
        )
        return loader(dataset)

    def state_dict(self) -> dict[str, Any]:
        """Random state and every environment's position; plain numbers and texts."""
        if self._collector is None:
            return {}
        replay = {} if self.replay is None else {"replay": self.replay.state_dict()}
        played = self._rollouts_before if self._dataset is None else self._dataset.rollouts
        state = {"rng": self._rng.bit_generator.state, "collector": self._collector.state_dict(), "rollouts": played}
        return {**state, **replay}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict or None

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

    def _stream(self, stage: str) -> int:
        """A seed of the stage's own, 0 <= seed < 2**31."""
        rank = self.trainer.global_rank if self.trainer is not None else 0
        return int(np.random.SeedSequence([self.seed, STAGES[stage], rank]).generate_state(1)[0] >> 1)

    def _training_collector(self) -> Collector:
        """Made when first needed: by then a checkpoint's state has been handed over."""
        if self._collector is None:
            self._collector = self._make_collector("fit", self.transcripts_per_rollout)
            if self._restored is not None:
                self._rng.bit_generator.state = self._restored["rng"]
                self._collector.load_state_dict(self._restored["collector"])
                self._rollouts_before = self._restored["rollouts"]
                if self.replay is not None and "replay" in self._restored:
                    self.replay.load_state_dict(self._restored["replay"])
        return self._collector

    def _context_builder(self) -> ContextBuilder:
        """Made when first needed: the tokenizer comes with the model."""
        if self._builder is None:
            learner = self._learner
            self._builder = ContextBuilder(learner.tokenizer, self.agent.system_prompt, learner.context_length)
        return self._builder

    def _make_collector(self, stage: str, kept_transcripts: int) -> Collector:
        builder = self._context_builder()
        count = self.num_envs if stage == "fit" else min(self.num_envs, self.eval_episodes)
        make = self._env_maker(stage)
        envs = worker_envs(make, count, self.worker_timeout) if self.workers else [make() for _ in range(count)]
        slots = [Slot(env, self.agent, builder, chooses=self._learner.chooses, history=self.history) for env in envs]
        group_size = self.group_size if stage == "fit" else 1
        return Collector(slots, self._stream(stage), kept_transcripts=kept_transcripts, group_size=group_size)

    def _evaluation(self, stage: str) -> list[DataLoader]:
        return [
            loader(
                EvaluationDataset(
                    self._learner,
                    lambda: self._make_collector(stage, 0),
                    seed=seed,
                    episodes=self.eval_episodes,
                    progress=self._progress,
                )
            )
            for seed in (None, self._stream(stage))
        ]
