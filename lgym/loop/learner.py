"""The learner of a user's loop: it responds to one observation after the other and learns from whole
episodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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
from lgym.data.prompts.prompt_builder import PromptBuilder
from lgym.loop.keywords import Pace, build_ppo, generation_policy, read_pace
from lgym.loop.loop_rollout import LoopEpisode, LoopTurn, rollout_of
from lgym.models import LLMConfig, LoraSettings, wrap_pretrained
from lgym.modules import PPO
from lgym.modules.checkpointing import CheckpointMismatchError, require_fitting, trained_state
from lgym.modules.nonfinite import NonFiniteLossError
from lgym.types import Message


def build_learner(
    model: Any,
    tokenizer: Any,
    device: Any,
    generation: Mapping[str, Any],
    learning: Mapping[str, Any],
    *,
    lora: Mapping[str, Any] | bool,
    history: History,
    seed: int | None,
) -> LoopLearner:
    """Build a learner with its model; arguments as of `lgym.Agent`. Keywords are read before the model is
    touched."""
    if history != "full" and history < 0:
        raise ValueError(f"history is {history}; it must be 0 or more turns, or full.")
    pace = read_pace(learning, seed)
    settings = LoraSettings(**lora) if isinstance(lora, Mapping) else LoraSettings() if lora else None
    module = build_ppo(learning, generation_policy(generation), LLMConfig(lora=settings))
    module.policy.bind(wrap_pretrained(model, tokenizer, settings, device=device, seed=pace.seed))
    module.configure_model()
    return LoopLearner(module, pace, history)


class LoopLearner:
    """One conversation after the other by the policy of a `PPO`, with its loss and optimizer, without a
    trainer.

    The keys and values of what the model has read and written are kept until its weights change.

    Args:
        module: the algorithm, its policy bound to a model.
        pace: the size of an update.
        history: the number of earlier turns of an episode that the model is shown.
    """

    def __init__(self, module: PPO, pace: Pace, history: History) -> None:
        self.module = module
        self.pace = pace
        self.llm = module.policy.llm
        self.module.eval()  # with dropout, another policy would be trained than the behavior policy
        self._history: History = history
        self._optimizer: torch.optim.Optimizer = module.configure_optimizers()
        self._rng = np.random.default_rng(pace.seed)
        self._weights = ExitStack()  # holds `llm.frozen_weights()` open except while it learns
        self._weights.enter_context(self.llm.frozen_weights())
        self._system_prompt = ""
        self._builder: PromptBuilder | None = None
        self._begin(number=0)
        self._forget()

    def _begin(self, number: int) -> None:
        self._episode = LoopEpisode(number)
        self._conversation: Conversation | None = None
        self._messages: list[Message] = []

    def _forget(self) -> None:
        self._episodes: list[LoopEpisode] = []  # not learned from yet
        self._seconds = 0.0  # of playing them

    # -- playing ---------------------------------------------------------------------------------------------

    def reply(self, system_prompt: str, observation_text: str) -> str:
        """The model's response to an observation."""
        started = time.perf_counter()
        if self._conversation is None:
            self._conversation = Conversation(self._contexts(system_prompt), self._history)
        prompt = self._conversation.prompt(observation_text, ())
        with self.module.inference() as policy:
            (response,), values = policy.act([prompt], self._rng)
        self._conversation.respond(response)
        self._episode.turns.append(LoopTurn(prompt, response, float(values[0])))
        self._messages += [
            {"role": "user", "content": observation_text},
            {"role": "assistant", "content": response.text},
        ]
        self._seconds += time.perf_counter() - started
        return response.text

    def read(self, parsed: bool) -> None:
        """Note whether an action could be parsed from the last response."""
        self._episode.turns[-1].parsed = parsed

    def pay(self, reward: float) -> None:
        """Add to the reward of the last turn."""
        if not self._episode.turns:
            raise ValueError(
                f"A reward of {reward} before the episode's first turn: call agent.act(observation) first."
            )
        self._episode.turns[-1].reward += reward

    def end(self, train: bool, truncated_at: str | None) -> dict[str, float]:
        """End the episode; learn, and return the metrics, once the kept episodes have a batch of turns."""
        episode = self._episode
        if train and episode.turns:
            if truncated_at is not None and self._conversation is not None:
                prompt = self._conversation.prompt(truncated_at, ())
                with self.module.inference() as policy:
                    episode.last_value = float(policy.values([prompt])[0])
                episode.truncated = True
            self._episodes.append(episode)
        self._begin(episode.number + 1)
        is_full = sum(len(episode.turns) for episode in self._episodes) >= self.pace.batch_size
        return self._update() if train and is_full else {}

    @property
    def rewards(self) -> list[float]:
        """The rewards of the current episode."""
        return [turn.reward for turn in self._episode.turns]

    def messages(self, system_prompt: str) -> list[Message]:
        """The current conversation."""
        return [{"role": "system", "content": system_prompt}, *self._messages]

    def _contexts(self, system_prompt: str) -> PromptBuilder:
        if self._builder is None or self._system_prompt != system_prompt:
            self._system_prompt = system_prompt
            self._builder = PromptBuilder(self.llm.tokenizer, system_prompt, self.module.context_length)
        return self._builder

    # -- learning --------------------------------------------------------------------------------------------

    def imitate(self, agent: TextAgent, turns: Sequence[Demonstration], epochs: int) -> dict[str, float]:
        """Imitate turns, each as the first of an episode. Returns the last epoch's loss per token, and the
        steps."""
        if waiting := sum(len(episode.turns) for episode in (*self._episodes, self._episode)):
            raise ValueError(
                f"{waiting} turns have been played and not learned from, and would be another policy's: "
                "imitate before the first episode, or when terminate_episode has returned an update's "
                "metrics."
            )
        builder = self._contexts(agent.system_prompt)
        sft_size = self.pace.mini_batch_size
        demonstrated = self.module.policy.demonstrated
        sampler = SFTSampler(agent, builder, demonstrated, turns, None, sft_size, scores_candidates=False)
        losses: list[list[float]] = []  # of each step
        with self._changing():
            for _ in range(epochs):
                batches = [[batch] for batch in sampler.demonstrations(self._rng)]
                losses += [[self._step(batch, self._imitated)["loss/sft"][0] for batch in batches]]
        return {"loss/sft": sum(losses[-1]) / len(losses[-1]), "optim/steps": float(sum(map(len, losses)))}

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
        rollout = rollout_of(self._episodes, self._seconds)
        self._forget()
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
                    for name, values in self._step(
                        minibatches[start : start + count], self.module.loss
                    ).items():
                        metrics[name] += values
        means = {name: sum(values) / len(values) for name, values in metrics.items()}
        return rollout_metrics | means | {"optim/steps": float(len(metrics["optim/grad_norm"]))}

    def _step(
        self, minibatches: list[ResponseBatch], loss_of: Callable[[ResponseBatch], Any]
    ) -> dict[str, list[float]]:
        metrics: dict[str, list[float]] = defaultdict(list)
        self._optimizer.zero_grad(set_to_none=True)
        for minibatch in minibatches:
            loss, batch_metrics = loss_of(minibatch.to(self.llm.device))
            (loss / len(minibatches)).backward()
            for name, value in batch_metrics.items():
                metrics[name].append(float(value))
        trained = [p for p in self.module.parameters() if p.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(trained, self.pace.max_grad_norm))
        if not np.isfinite(norm):
            raise NonFiniteLossError(
                f"The gradient's norm is {norm}, after {self._episode.number} episodes; no step was taken. "
                "Lower learning_rate or max_grad_norm."
            )
        self._optimizer.step()
        return metrics | {"optim/grad_norm": [norm]}

    # -- keeping ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The trained weights, the optimizer's state and the random state: tensors, numbers and texts."""
        return {
            "model": self._model_name,
            "trained": trained_state(self.module, self.module.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.bit_generator.state,
            "episodes": self._episode.number,
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
        rates = [group["lr"] for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._rng.bit_generator.state = state["rng"]
        self._forget()
        self._begin(state["episodes"])

    @property
    def _model_name(self) -> str:
        """The name without its folders, which may be others on another machine."""
        return Path(self.llm.name).name
