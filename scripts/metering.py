"""What `bench.py` times, and modules that keep account of what playing and learning computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import torch

from lgym.agents import BlackjackAgent, CartPoleAgent, TextAgent
from lgym.batch import ResponseBatch
from lgym.models import LLMConfig
from lgym.models.llm import ValueHeadLLM
from lgym.modules import GRPO, PPO, CriticConfig, LossConfig, PolicyLearner
from lgym.policies import CandidatePolicy, GenerationPolicy
from lgym.rollout import Rollout
from lgym.types import ParsedAction
from peers import letters


class ExactCartPoleAgent(CartPoleAgent):
    """The four numbers in hundredths: states hardly ever repeat, and every prompt is a distinct one."""

    def format_observation(self, observation: Sequence[float]) -> str:
        return "cart {} moving {}, pole {} turning {}".format(
            *(round(100 * float(part)) for part in observation)
        )


class LettersEnv(gymnasium.Env):
    """One turn: a prompt, paid for the share of vowels in the reply. The reset seed says which prompt."""

    observation_space = gymnasium.spaces.Discrete(len(letters.PROMPTS))
    action_space = gymnasium.spaces.Text(10_000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return (seed or 0) % len(letters.PROMPTS), {}

    def step(self, action: str) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, letters.reward(action), True, False, {}


class LettersAgent(TextAgent):
    system_prompt = letters.SYSTEM

    def format_observation(self, observation: int) -> str:
        return letters.PROMPTS[observation]

    def extract_action(self, text: str) -> ParsedAction:
        return ParsedAction(text)


gymnasium.register("Letters-v0", LettersEnv)  # type: ignore[arg-type]


@dataclass
class Work:
    """What one phase of one rollout took, and what it did."""

    seconds: float = 0.0
    model_seconds: float = 0.0
    steps: int = 0
    distinct_tokens: int = 0
    places: int = 0
    all_tokens: int = 0


class Meter:
    """Counts a module's rollouts: (playing, updating, distinct prompts) each."""

    def __init__(self, module: PolicyLearner) -> None:
        self.policy: Any = module.policy
        self._module: Any = module
        self.rollouts: list[tuple[Work, Work, int]] = []
        self._playing = Work()
        act: Callable[..., Any] = self.policy.act

        def metered(*args: Any, **kwargs: Any) -> Any:
            begun, before = time.perf_counter(), self._counts()
            answer = act(*args, **kwargs)
            self._playing.model_seconds += time.perf_counter() - begun
            self._add(self._playing, before)
            return answer

        self.policy.act = metered  # type: ignore[method-assign]

    def played(self, rollout: Rollout) -> None:
        self._ended, self._before = time.perf_counter(), self._counts()
        self._all_tokens, self._turns = _all_tokens(rollout), int(rollout.mask.sum())
        self._prompts = len(rollout.prompts)
        self._playing.seconds, self._playing.steps = rollout.seconds, self._turns
        self._playing.all_tokens = self._all_tokens

    def learned(self) -> None:
        seconds = time.perf_counter() - self._ended
        passes = self._module.trainer.datamodule.update_epochs
        updating = Work(seconds, seconds, self._turns, all_tokens=self._all_tokens * passes)
        self._add(updating, self._before)
        self.rollouts.append((self._playing, updating, self._prompts))
        self._playing = Work()

    def _counts(self) -> tuple[int, int]:
        return self.policy.llm.tokens_computed, self.policy.llm.padded_tokens_computed

    def _add(self, work: Work, before: tuple[int, int]) -> None:
        tokens, places = self._counts()
        work.distinct_tokens += tokens - before[0]
        work.places += places - before[1]


def _all_tokens(rollout: Rollout) -> int:
    """What every turn, with each candidate or its reply, would cost by itself."""
    prompts, responses = rollout.turn_prompts(), rollout.turn_responses()
    if responses[0].choice < 0:
        return sum(len(p.token_ids) + len(r.token_ids) for p, r in zip(prompts, responses, strict=True))
    sizes = torch.tensor(
        [sum(len(p.token_ids) + len(ids) for ids in p.candidate_ids) for p in rollout.prompts]
    )
    return int(sizes[rollout.prompt_index[rollout.mask]].sum())


class MeteredPPO(PPO):
    """PPO with its meter."""

    def __init__(self, llm: ValueHeadLLM, after_rollout: Callable[[], None]) -> None:
        super().__init__(
            llm=LLMConfig(model=llm.name),
            policy=CandidatePolicy(),
            loss=LossConfig(entropy_coef=0.01, old_kl_coef=0.3),
            critic=CriticConfig(),
        )
        self.policy.bind(llm)
        self.meter, self._after_rollout = Meter(self), after_rollout

    def prepare(self, rollout: Rollout) -> tuple[ResponseBatch, dict[str, float]]:
        self.meter.played(rollout)
        return super().prepare(rollout)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.meter.learned()
        self._after_rollout()


class MeteredGRPO(GRPO):
    """GRPO with its meter."""

    def __init__(self, llm: ValueHeadLLM, after_rollout: Callable[[], None]) -> None:
        super().__init__(llm=LLMConfig(model=llm.name), policy=GenerationPolicy(max_new_tokens=8))
        self.policy.bind(llm)
        self.meter, self._after_rollout = Meter(self), after_rollout

    def prepare(self, rollout: Rollout) -> tuple[ResponseBatch, dict[str, float]]:
        self.meter.played(rollout)
        return super().prepare(rollout)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.meter.learned()
        self._after_rollout()


TASKS: dict[str, dict[str, Any]] = {
    "blackjack": {
        "env": "Blackjack-v1",
        "agent": BlackjackAgent,
        "num_envs": 1024,
        "episodes_per_rollout": 20_000,
        "minibatch_size": 64,
    },
    "cartpole": {
        "env": "CartPole-v1",
        "agent": CartPoleAgent,
        "num_envs": 128,
        "turns_per_rollout": 8192,
        "minibatch_size": 64,
    },
    "cartpole-exact": {
        "env": "CartPole-v1",
        "agent": ExactCartPoleAgent,
        "num_envs": 128,
        "turns_per_rollout": 768,
        "minibatch_size": 128,
    },
    "letters": {
        "module": MeteredGRPO,
        "env": "Letters-v0",
        "agent": LettersAgent,
        "num_envs": 64,
        "episodes_per_rollout": 64,
        "group_size": 8,
        "update_epochs": 1,
        "minibatch_size": 64,
    },
}
