"""The model in a user's loop: it answers one observation after the other, is paid, and learns from whole episodes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lgym.agents import TextAgent
from lgym.batch import ReplyBatch, Rollout
from lgym.data.imitation.demonstrations import Demonstration
from lgym.data.imitation.sft_sampler import Imitation
from lgym.data.prompts.conversation import Conversation, History
from lgym.data.prompts.prompt_builder import ContextBuilder
from lgym.loop.keywords import Pace, generation_policy, read_pace, text_ppo
from lgym.loop.loop_rollout import LoopEpisode, LoopTurn, rollout_of
from lgym.models import LLMConfig, LoraSettings, adopt
from lgym.modules import TextPPO
from lgym.modules.checkpointing import CheckpointMismatchError, require_fitting, trained_state
from lgym.modules.faults import NonFiniteLossError
from lgym.types import Message, Said


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
    """A learner with its model; arguments as of `lgym.Agent`. Keywords are read before the model is touched."""
    if history != "full" and history < 0:
        raise ValueError(f"history is {history}; it must be 0 or more turns, or full.")
    pace = read_pace(learning, seed)
    settings = LoraSettings(**lora) if isinstance(lora, Mapping) else LoraSettings() if lora else None
    module = text_ppo(learning, generation_policy(generation), LLMConfig(lora=settings))
    module.policy.bind(adopt(model, tokenizer, settings, device=device, seed=pace.seed))
    module.configure_model()
    return LoopLearner(module, pace, history)


class LoopLearner:
    """One conversation after the other by the policy of a `TextPPO`, and its loss and optimizer, without a trainer.

    What the model has read and written stays in its memory until its weights change.
    """

    def __init__(self, module: TextPPO, pace: Pace, history: History) -> None:
        """
        Args:
            module: the algorithm, its policy bound to a model.
            pace: when and how it learns.
            history: how many earlier turns of an episode the model is shown.
        """
        self.module, self.pace, self.llm = module, pace, module.policy.llm
        self._policy: Any = module.policy
        self.module.eval()  # with dropout, another policy would be trained than the one that plays
        self._history: History = history
        self._optimizer: torch.optim.Optimizer = module.configure_optimizers()
        self._rng = np.random.default_rng(pace.seed)
        self._weights = ExitStack()  # holds `llm.fixed()` open but for while it learns
        self._weights.enter_context(self.llm.fixed())
        self._system_prompt = ""
        self._builder: ContextBuilder | None = None
        self._episodes: list[LoopEpisode] = []  # not learned from yet
        self._seconds = 0.0  # of playing them
        self._begin(number=0)

    def _begin(self, number: int) -> None:
        self._episode = LoopEpisode(number)
        self._conversation: Conversation | None = None
        self._messages: list[Message] = []

    # -- playing --------------------------------------------------------------------------------------------------------

    def reply(self, system_prompt: str, observation_text: str) -> str:
        """What the model says to an observation."""
        begun = time.perf_counter()
        if self._conversation is None:
            self._conversation = Conversation(self._contexts(system_prompt), self._history)
        context = self._conversation.context(observation_text, ())
        with self.module.acting():
            (reply,), values = self._policy.reply([context], int(self._rng.integers(2**62)))
        self._conversation.reply(Said(reply.text, reply.text, reply.ids, reply.ended))
        self._episode.turns.append(LoopTurn(context, reply, float(values[0])))
        self._messages += [{"role": "user", "content": observation_text}, {"role": "assistant", "content": reply.text}]
        self._seconds += time.perf_counter() - begun
        return reply.text

    def read(self, parsed: bool) -> None:
        """Notes whether an action could be read from the last reply."""
        self._episode.turns[-1].parsed = parsed

    def pay(self, reward: float) -> None:
        """Adds to the reward of the last turn."""
        if not self._episode.turns:
            raise ValueError(f"A reward of {reward} before the episode's first turn: call agent.act(observation) first.")
        self._episode.turns[-1].reward += reward

    def end(self, train: bool, truncated_at: str | None) -> dict[str, float]:
        """Ends the episode; learns, and tells how that went, once the kept ones have a batch of turns."""
        episode = self._episode
        if train and episode.turns:
            if truncated_at is not None and self._conversation is not None:
                with self.module.acting():
                    episode.last_value = float(self._policy.values([self._conversation.context(truncated_at, ())])[0])
                episode.truncated = True
            self._episodes.append(episode)
        self._begin(episode.number + 1)
        full = sum(len(episode.turns) for episode in self._episodes) >= self.pace.batch_size
        return self._learn() if train and full else {}

    @property
    def rewards(self) -> list[float]:
        """Of each turn of the episode in hand."""
        return [turn.reward for turn in self._episode.turns]

    def messages(self, system_prompt: str) -> list[Message]:
        """The conversation in hand."""
        return [{"role": "system", "content": system_prompt}, *self._messages]

    def _contexts(self, system_prompt: str) -> ContextBuilder:
        if self._builder is None or self._system_prompt != system_prompt:
            self._system_prompt = system_prompt
            self._builder = ContextBuilder(self.llm.tokenizer, system_prompt, self.module.context_length)
        return self._builder

    # -- learning -------------------------------------------------------------------------------------------------------

    def imitate(self, agent: TextAgent, turns: Sequence[Demonstration], epochs: int) -> dict[str, float]:
        """Passes over turns to imitate, each as the first of an episode: the last pass's loss per token, and the steps."""
        if self._episodes or self._episode.turns:
            waiting = sum(len(episode.turns) for episode in (*self._episodes, self._episode))
            raise ValueError(
                f"{waiting} turns have been played and not learned from, and would be another policy's: imitate before the "
                "first episode, or when terminate_episode has returned an update's metrics."
            )
        builder, size = self._contexts(agent.system_prompt), self.pace.mini_batch_size
        imitation = Imitation(agent, builder, self._policy.demonstrated, turns, None, size, chooses=False)
        steps, losses = 0, []
        with self._changing():
            for _ in range(epochs):
                told = [self._step([batch], self._imitated) for batch in imitation.demonstrations(self._rng)]
                losses, steps = [value for own in told for name, value in own if name == "loss/sft"], steps + len(told)
        return {"loss/sft": sum(losses) / len(losses), "optim/steps": float(steps)}

    def _imitated(self, batch: ReplyBatch) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.module.imitation_loss(batch)
        return loss, {"loss/sft": loss.detach()}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Within, weights may change; what the model had read is forgotten."""
        self._weights.close()
        try:
            yield
        finally:
            self._weights.enter_context(self.llm.fixed())

    def _learn(self) -> dict[str, float]:
        """One update from the kept episodes, which are then forgotten."""
        rollout = rollout_of(self._episodes, self._seconds)
        self._episodes, self._seconds = [], 0.0
        with self._changing():
            return self._update(rollout)

    def _update(self, rollout: Rollout) -> dict[str, float]:
        """Passes over a rollout: the means of their metrics, and the rollout's own."""
        batch = self.module.prepare(rollout)
        sums: dict[str, list[float]] = defaultdict(list)
        for _ in range(self.pace.ppo_epochs):
            order = self._rng.permutation(len(batch.bundles)).tolist()
            minibatches = list(batch.minibatches(self.pace.mini_batch_size, order))
            together = self.pace.gradient_accumulation_steps
            for start in range(0, len(minibatches), together):
                for name, value in self._step(minibatches[start : start + together], self.module.loss):
                    sums[name].append(value)
        means = {name: sum(values) / len(values) for name, values in sums.items()}
        return self.module.rollout_metrics | means | {"optim/steps": float(len(sums["optim/grad_norm"]))}

    def _step(self, minibatches: list[ReplyBatch], loss_of: Callable[[ReplyBatch], Any]) -> list[tuple[str, float]]:
        """One step of the optimizer; the metrics of each minibatch, and the gradient's norm."""
        told = []
        self._optimizer.zero_grad(set_to_none=True)
        for minibatch in minibatches:
            loss, metrics = loss_of(minibatch.to(self.llm.device))
            (loss / len(minibatches)).backward()
            told += [(name, float(value)) for name, value in metrics.items()]
        trained = [p for p in self.module.parameters() if p.grad is not None]
        norm = float(nn.utils.clip_grad_norm_(trained, self.pace.max_grad_norm))
        if not np.isfinite(norm):
            raise NonFiniteLossError(
                f"The gradient's norm is {norm}, after {self._episode.number} episodes; no step was taken. Lower "
                "learning_rate or max_grad_norm."
            )
        self._optimizer.step()
        return [*told, ("optim/grad_norm", norm)]

    # -- keeping --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is trained, the optimizer's state and that of chance: tensors, numbers and texts."""
        return {
            "model": self._model_name,
            "trained": trained_state(self.module, self.module.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.bit_generator.state,
            "episodes": self._episode.number,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` returned, but for the learning rates: those count that the agent was given.

        Raises:
            ValueError: if it belongs to another model, or to other adapters; nothing is put back.
        """
        try:
            require_fitting(self.module, state["trained"], state["model"], self._model_name)
        except CheckpointMismatchError as error:
            raise ValueError(
                f"This state is of an agent with {state['model']!r} or with other adapters than this one, whose model is "
                f"{self._model_name!r}. Make the agent with the model and the `lora` that it was saved with."
            ) from error
        self._weights.close()
        self._weights.enter_context(self.llm.fixed())
        self.module.load_state_dict(state["trained"], strict=False)  # what is frozen is not in it
        rates = [group["lr"] for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._rng.bit_generator.state = state["rng"]
        self._episodes, self._seconds = [], 0.0
        self._begin(state["episodes"])

    @property
    def _model_name(self) -> str:
        """Without the folders that it lies in, which may be others on another machine."""
        return Path(self.llm.name).name
