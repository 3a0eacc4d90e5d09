"""The learner of a user's loop: it responds to one observation after the other and learns from whole
episodes."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lgym.agents import TextAgent
from lgym.batch import ResponseBatch
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import SFTSampler
from lgym.data.prompts.conversation import Conversation, History
from lgym.data.prompts.episode_prompts import EpisodePrompts
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.loop.keywords import build_ppo, generation_policy, read_pace
from lgym.loop.loop_rollout import LoopEpisode, LoopTurn, rollout_of
from lgym.models import LLMConfig, LoraSettings, wrap_pretrained
from lgym.modules.checkpointing import CheckpointMismatchError, require_fitting, trained_state
from lgym.modules.nonfinite import NonFiniteLossError


class LoopLearner:
    """One conversation after the other by the policy of a `PPO`, with its loss and optimizer, without a
    trainer.

    The keys and values of what the model has read and written are kept until its weights change. Arguments
    are as of `lgym.Agent`; keywords are read before the model is touched.

    Attributes:
        module: the algorithm, its policy bound to the model.
        llm: the model.
        pace: the size of an update.
        episode: the current episode.
        episodes: those that are kept, and not learned from yet.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: Any,
        generation: Mapping[str, Any],
        learning: Mapping[str, Any],
        *,
        lora: Mapping[str, Any] | bool,
        history: History,
        seed: int | None,
    ) -> None:
        if history != "full" and history < 0:
            raise ValueError(f"history is {history}; it must be 0 or more turns, or full.")
        self.pace = read_pace(learning, seed)
        settings = LoraSettings(**lora) if isinstance(lora, Mapping) else LoraSettings() if lora else None
        config = LLMConfig(lora=settings).for_text()
        self.module = build_ppo(learning, generation_policy(generation), config)
        self.llm = wrap_pretrained(model, tokenizer, config.lora, device=device, seed=self.pace.seed)
        self.module.policy.bind(self.llm)
        self.module.configure_model()
        self.module.eval()  # with dropout, another policy would be trained than the behavior policy
        self.episode = LoopEpisode(number=0)
        self.episodes: list[LoopEpisode] = []
        self._history: History = history
        self._conversation: Conversation
        self._model_name = Path(self.llm.name).name  # its folders may be others on another machine
        self._optimizer: torch.optim.Optimizer = self.module.configure_optimizers()
        self._rng = np.random.default_rng(self.pace.seed)
        self._weights = ExitStack()  # holds `llm.frozen_weights()` open except while it learns
        self._weights.enter_context(self.llm.frozen_weights())
        builder = partial(PromptBuilder, self.llm.tokenizer, context_length=self.module.context_length)
        self._builder = lru_cache(maxsize=1)(builder)  # of a system prompt, which may change

    # -- playing ---------------------------------------------------------------------------------------------

    def respond(self, system_prompt: str, observation_text: str) -> LoopTurn:
        """The turn of an observation, with the model's response."""
        started = time.perf_counter()
        if not self.episode.turns:
            self._conversation = Conversation(self._builder(system_prompt), self._history)
        prompt = self._conversation.prompt(observation_text, ())
        with self.module.inference() as policy:
            (response,), values = policy.act([prompt], self._rng)
        self._conversation.respond(response)
        self.episode.turns.append(LoopTurn(prompt, response, float(values[0])))
        self.episode.messages += [
            {"role": "user", "content": observation_text},
            {"role": "assistant", "content": response.text},
        ]
        self.episode.seconds += time.perf_counter() - started
        return self.episode.turns[-1]

    def end(self, train: bool, truncated_at: str | None) -> dict[str, float]:
        """End the episode; learn, and return the metrics, once the kept episodes have a batch of turns."""
        episode = self.episode
        if train and episode.turns:
            if truncated_at is not None:
                prompt = self._conversation.prompt(truncated_at, ())
                with self.module.inference() as policy:
                    episode.truncation_value = float(policy.values([prompt])[0])
            self.episodes.append(episode)
        self.episode = LoopEpisode(episode.number + 1)
        is_full = sum(len(episode.turns) for episode in self.episodes) >= self.pace.batch_size
        return self._update() if train and is_full else {}

    # -- learning --------------------------------------------------------------------------------------------

    def imitate(self, agent: TextAgent, turns: Sequence[Demonstration], epochs: int) -> dict[str, float]:
        """Imitate turns, each as the first of an episode. Returns the last epoch's loss per token, and the
        steps."""
        if waiting := sum(len(episode.turns) for episode in (*self.episodes, self.episode)):
            raise ValueError(
                f"{waiting} turns have been played and not learned from, and would be another policy's: "
                "imitate before the first episode, or when terminate_episode has returned an update's "
                "metrics."
            )
        sampler = SFTSampler(
            agent,
            partial(EpisodePrompts, agent, self._builder(agent.system_prompt)),
            self.module.policy.demonstrated,
            turns,
            (),
            self.pace.mini_batch_size,
            scores_candidates=False,
        )
        with self._changing():
            for _ in range(epochs):
                metrics: dict[str, list[float]] = defaultdict(list)
                for batch in sampler.demonstration_batches(self._rng):
                    self._step([batch], self._imitated, metrics)
        losses = metrics["loss/sft"]
        return {"loss/sft": sum(losses) / len(losses), "optim/steps": float(epochs * len(losses))}

    def _imitated(self, batch: ResponseBatch) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.module.sft_loss(batch)
        return loss, {"loss/sft": loss.detach()}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Context manager in which weights may change; the keys and values that were kept are dropped."""
        self._weights.close()
        try:
            yield
        finally:
            self._weights.enter_context(self.llm.frozen_weights())

    def _update(self) -> dict[str, float]:
        """Learn from the kept episodes. Returns the means of the metrics over its steps, and the rollout's
        own."""
        rollout = rollout_of(self.episodes)
        self.episodes = []
        metrics: dict[str, list[float]] = defaultdict(list)
        with self._changing():
            batch, rollout_metrics = self.module.prepare(rollout)
            for _ in range(self.pace.ppo_epochs):
                order = self._rng.permutation(len(batch.prompt_chains)).tolist()
                minibatches = list(batch.minibatches(self.pace.mini_batch_size, order))
                if not metrics:
                    minibatches[0] = replace(minibatches[0], metrics=rollout_metrics)
                count = self.pace.gradient_accumulation_steps
                for start in range(0, len(minibatches), count):
                    self._step(minibatches[start : start + count], self.module.loss, metrics)
        means = {name: sum(values) / len(values) for name, values in metrics.items()}
        return rollout_metrics | means | {"optim/steps": float(len(metrics["optim/grad_norm"]))}

    def _step(
        self,
        minibatches: Sequence[ResponseBatch],
        loss_of: Callable[[ResponseBatch], Any],
        metrics: dict[str, list[float]],
    ) -> None:
        self._optimizer.zero_grad()
        for minibatch in minibatches:
            loss, batch_metrics = loss_of(minibatch.to(self.llm.device))
            (loss / len(minibatches)).backward()
            for name, value in batch_metrics.items():
                metrics[name].append(float(value))
        norm = float(nn.utils.clip_grad_norm_(self.module.parameters(), self.pace.max_grad_norm))
        if not np.isfinite(norm):
            raise NonFiniteLossError(
                f"The gradient's norm is {norm}, after {self.episode.number} episodes; no step was taken. "
                "Lower learning_rate or max_grad_norm."
            )
        self._optimizer.step()
        metrics["optim/grad_norm"].append(norm)

    # -- keeping ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The trained weights, the optimizer's state and the random state: tensors, numbers and texts."""
        return {
            "model": self._model_name,
            "trained": trained_state(self.module, self.module.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.bit_generator.state,
            "episodes": self.episode.number,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, except the learning rates: those count that the agent was
        given.

        Raises:
            ValueError: if it belongs to another model, or to other adapters; nothing is restored.
        """
        try:
            require_fitting(self.module, state["trained"], state["model"], self._model_name)
        except CheckpointMismatchError as error:
            raise ValueError(
                f"This state is of an agent with {state['model']!r} or with other adapters than this one, "
                f"whose model is {self._model_name!r}. Make the agent with the model and the `lora` that it "
                "was saved with."
            ) from error
        with self._changing():
            self.module.load_state_dict(state["trained"], strict=False)  # frozen weights are not in it
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self._rng.bit_generator.state = state["rng"]
        self.episodes = []
        self.episode = LoopEpisode(state["episodes"])
