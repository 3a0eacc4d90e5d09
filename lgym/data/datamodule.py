"""The data side of a run: which environment, which agent, how much is played between two updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader

from lgym.agents.base import TextAgent
from lgym.batch import Context
from lgym.data.chat import ContextBuilder
from lgym.data.collector import Collector
from lgym.data.dataset import EvaluationDataset, RolloutDataset
from lgym.data.questions import action_of, candidates_of
from lgym.data.slot import Slot
from lgym.envs import make_env
from lgym.types import Episode, Learner, ParsedAction

STAGES = {"fit": 0, "validate": 1, "test": 2, "predict": 3}
"""Each stage draws its reset seeds and its sampling from a stream of its own."""


class RolloutDataModule(L.LightningDataModule):
    """Plays live episodes to fill each batch. One Lightning epoch is one rollout."""

    def __init__(
        self,
        env: str,
        agent: TextAgent,
        env_kwargs: dict[str, Any] | None = None,
        max_episode_steps: int | None = None,
        num_envs: int = 16,
        episodes_per_rollout: int | None = None,
        turns_per_rollout: int | None = None,
        update_epochs: int = 4,
        minibatch_size: int = 32,
        group_size: int = 1,
        eval_episodes: int = 100,
        transcripts_per_rollout: int = 4,
        seed: int = 0,
    ) -> None:
        """
        Args:
            env: id of a Gymnasium environment, such as Blackjack-v1; `package:Env-v0` imports the package first.
            agent: the words of that environment, by class_path.
            env_kwargs: keyword arguments of the environment's constructor.
            max_episode_steps: turns after which an episode is truncated; null takes the environment's own limit.
            num_envs: environments played together.
            episodes_per_rollout: whole episodes played between two updates. Give this or turns_per_rollout.
            turns_per_rollout: turns played between two updates, over all environments; a multiple of num_envs. Episodes
                go on in the next rollout.
            update_epochs: passes over each rollout.
            minibatch_size: distinct prompts in a minibatch; every turn that was played from them is in it.
            group_size: episodes in a row that start from the same reset seed while training: what grouped estimators (GRPO)
                compare. A divisor of episodes_per_rollout.
            eval_episodes: episodes that validate and test play in each mode, greedy and sampled; predict writes as many.
            transcripts_per_rollout: of how many episodes a rollout to keep the text for TensorBoard.
            seed: of everything random on this side: reset seeds, sampled actions, the order of minibatches.
        """
        super().__init__()
        _require_positive(
            num_envs=num_envs,
            update_epochs=update_epochs,
            minibatch_size=minibatch_size,
            group_size=group_size,
            eval_episodes=eval_episodes,
        )
        _require_one_amount(episodes_per_rollout, turns_per_rollout, num_envs)
        _require_whole_groups(group_size, episodes_per_rollout)
        self.group_size = group_size
        self.env, self.env_kwargs, self.max_episode_steps = env, env_kwargs, max_episode_steps
        self.agent = agent
        self.num_envs = num_envs
        self.episodes_per_rollout, self.turns_per_rollout = episodes_per_rollout, turns_per_rollout
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size
        self.eval_episodes = eval_episodes
        self.transcripts_per_rollout = transcripts_per_rollout
        self.seed = seed
        self._rng = np.random.default_rng(self._stream("fit"))
        self._collector: Collector | None = None
        self._restored: dict[str, Any] | None = None
        self._builder: ContextBuilder | None = None
        self._offers_candidates = self._check_questions()

    def setup(self, stage: str) -> None:
        """Refuses an agent that does not go with the policy; no model is loaded yet."""
        if self._learner.speaks:
            self._check_speaking()
        if not self._offers_candidates and not self._learner.speaks:
            raise ValueError(
                f"{type(self.agent).__name__} offers no candidates, and the candidate policy chooses between candidates. "
                "Set its class attribute `actions`, return them from `candidates(observation, info)`, or let the model "
                "speak: lgym.modules.GRPO."
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
        dataset = RolloutDataset(
            self._learner,
            self._training_collector(),
            self._rng,
            episodes=self.episodes_per_rollout,
            turns=self.turns_per_rollout,
            update_epochs=self.update_epochs,
            minibatch_size=self.minibatch_size,
            progress=self._progress,
        )
        return _loader(dataset)

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
        return _loader(dataset)

    def state_dict(self) -> dict[str, Any]:
        """Random state and every environment's position; plain numbers and texts."""
        if self._collector is None:
            return {}
        return {"rng": self._rng.bit_generator.state, "collector": self._collector.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict or None

    def teardown(self, stage: str) -> None:
        if self._collector is not None and stage == "fit":
            self._collector.close()
            self._collector = None

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
        envs = [make_env(self.env, self.env_kwargs, self.max_episode_steps) for _ in range(count)]
        slots = [Slot(env, self.agent, builder, speaks=self._learner.speaks) for env in envs]
        group_size = self.group_size if stage == "fit" else 1
        return Collector(slots, self._stream(stage), kept_transcripts=kept_transcripts, group_size=group_size)

    def _evaluation(self, stage: str) -> list[DataLoader]:
        return [
            _loader(
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

    def _check_speaking(self) -> None:
        """Has the agent read a reply that says nothing, and looks at its fallback."""
        name = type(self.agent).__name__
        parsed = self.agent.extract_action("")
        if not isinstance(parsed, ParsedAction):
            raise ValueError(f"{name}.extract_action returned {parsed!r} for an empty reply; it must return a ParsedAction.")
        env = make_env(self.env, self.env_kwargs, self.max_episode_steps)
        space = env.action_space
        env.close()
        if self.agent.fallback == "default" and not space.contains(self.agent.default_action):
            raise ValueError(
                f"{name}.fallback is 'default', and its default_action {self.agent.default_action!r} is not in {self.env}'s "
                f"action space {space}."
            )

    def _check_questions(self) -> bool:
        """Asks the agent about a first observation, so that its mistakes show before a model is loaded.

        Returns whether it offers candidates."""
        env = make_env(self.env, self.env_kwargs, self.max_episode_steps)
        try:
            observation, info = env.reset(seed=self.seed)
            text = self.agent.format_observation(observation)
            if not isinstance(text, str):
                raise ValueError(f"{type(self.agent).__name__}.format_observation returned {text!r}; it must return text.")
            if self.agent.candidates(observation, info) is None:
                return False
            for candidate in candidates_of(self.agent, observation, info):
                action = action_of(self.agent, candidate)
                if not env.action_space.contains(action):
                    raise ValueError(
                        f"{type(self.agent).__name__} reads its candidate {candidate!r} as the action {action!r}, "
                        f"which is not in {self.env}'s action space {env.action_space}."
                    )
        finally:
            env.close()
        return True


def _loader(dataset: Any) -> DataLoader:
    """Batches come ready from the dataset; worker processes would not have the policy. A loader draws a number whenever it
    is iterated: from a generator of its own, so that an evaluation more leaves the run's randomness as it was."""
    return DataLoader(dataset, batch_size=None, num_workers=0, collate_fn=lambda batch: batch, generator=torch.Generator())


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"data.{name} is {value}; it must be 1 or more.")


def _require_whole_groups(group_size: int, episodes: int | None) -> None:
    if group_size > 1 and (episodes is None or episodes % group_size):
        raise ValueError(
            f"data.group_size is {group_size} and data.episodes_per_rollout is {episodes}; groups are compared as whole "
            "episodes, so give episodes_per_rollout as a multiple of group_size."
        )


def _require_one_amount(episodes: int | None, turns: int | None, num_envs: int) -> None:
    if (episodes is None) == (turns is None):
        raise ValueError(
            f"data.episodes_per_rollout is {episodes} and data.turns_per_rollout is {turns}; give one of the two."
        )
    _require_positive(episodes_per_rollout=1 if episodes is None else episodes)
    if turns is not None and (turns < num_envs or turns % num_envs):
        raise ValueError(
            f"data.turns_per_rollout is {turns}; it must be a multiple of data.num_envs ({num_envs}), such as "
            f"{max(1, round(turns / num_envs)) * num_envs}."
        )
