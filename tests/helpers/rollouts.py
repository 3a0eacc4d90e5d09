"""Rollouts made by hand, and algorithms on the tiny model that learn from them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch

from helpers import tiny
from helpers.prompts import make_prompt
from lgym.batch import ResponseBatch
from lgym.models import LLMConfig
from lgym.modules import A2C, PPO, REINFORCE, CriticConfig, LossConfig, PolicyLearner
from lgym.modules.configs import POLICY_GRADIENT
from lgym.modules.ppo import PPO_LOSS
from lgym.modules.response_batch import RolloutTurns, response_batch, rollout_turns
from lgym.policies import CandidatePolicy, GenerationPolicy, LLMPolicy
from lgym.policies.distribution_cache import choice_response
from lgym.rollout import Prompt, Response, Rollout

CPU_TRAINER = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Settings of a `Trainer` that leaves nothing behind."""


def make_learner(algorithm: type[PolicyLearner], policy: LLMPolicy, loss: LossConfig, **settings: Any) -> Any:
    """An algorithm on the tiny float64 model.

    Args:
        algorithm: its class.
        policy: how it acts.
        loss: the loss before `settings`.
        **settings: fields of `LossConfig` and `CriticConfig`, and the algorithm's own arguments.
    """
    policy.bind(tiny.llm(dtype=torch.float64))
    configs = {"loss": loss}
    if algorithm.has_critic:
        configs["critic"] = CriticConfig()
    for name, config in configs.items():
        names = [field.name for field in fields(config) if field.name in settings]
        configs[name] = replace(config, **{key: settings.pop(key) for key in names})
    module = algorithm(llm=LLMConfig(model="tiny"), policy=policy, **{**configs, **settings})
    module.configure_model()
    return module


def perturb(module: PolicyLearner, std: float, *, parameters: tuple[str, ...] = ("lora_B",)) -> PolicyLearner:
    """Move a policy away from the behavior policy by random changes of its weights."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if any(part in name for part in parameters):
                parameter.add_(std * torch.randn_like(parameter))
    return module


def shift(module: PolicyLearner, by: float) -> PolicyLearner:
    """Move a policy away from the behavior policy by the same change of each adapter weight."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.add_(by)
    return module


def with_fixed_statistics(module: Any) -> Any:
    """Keep the mean and the standard deviation of returns at 0 and 1, for numbers in rewards."""
    module.policy.llm.value_head.update_statistics = lambda returns: None
    return module


def turns_of(rollout: Rollout) -> RolloutTurns:
    """The turns of a rollout, with rewards as they are."""
    return rollout_turns(rollout, *response_batch(rollout), None)


def gradients_of(module: PolicyLearner, batch: ResponseBatch) -> dict[str, torch.Tensor]:
    """The gradients of a minibatch's loss by the names of the parameters."""
    module.zero_grad()
    module.loss(batch)[0].backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


# -- candidates ----------------------------------------------------------------------------------------------


def candidate_prompt(text: str, *candidates: str) -> Prompt:
    encode = tiny.tokenizer().encode
    candidate_ids = tuple(tuple(encode(candidate)) for candidate in candidates)
    return Prompt(tuple(encode("see " + text)), candidate_ids, candidates, text)


CANDIDATE_PROMPTS = (
    candidate_prompt("a", "x", "y"),
    candidate_prompt("b", "x", "y", "z"),
    candidate_prompt("c", "y", "x"),
)
CHOICES = ((0, 0), (1, 2), (0, 1), (2, 1), (1, 0), (0, 0))
"""The prompt and the candidate of each turn, the last of which is idle."""


def candidate_learner(**settings: Any) -> PPO:
    """PPO with its own loss and without warm-up."""
    return make_learner(PPO, CandidatePolicy(), PPO_LOSS, **settings)


def candidate_rollout(module: PolicyLearner, **changes: Any) -> Rollout:
    """Two streams of three turns; the second one idles in the last."""
    logprobs, values = module.policy.distributions(CANDIDATE_PROMPTS), module.policy.values(CANDIDATE_PROMPTS)
    distributions = [
        tuple(row[: len(prompt.candidates)].tolist())
        for row, prompt in zip(logprobs, CANDIDATE_PROMPTS, strict=True)
    ]
    columns = {
        "prompts": CANDIDATE_PROMPTS,
        "prompt_values": values,
        "responses": tuple(
            choice_response(CANDIDATE_PROMPTS[number], choice, distributions[number])
            for number, choice in CHOICES
        ),
        "prompt_index": torch.tensor([[0, 1, 0], [2, 1, 0]]),
        "response_index": torch.tensor([[0, 1, 2], [3, 4, 5]]),
        "rewards": torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]]),
        "terminated": torch.tensor([[False, True, True], [False, True, True]]),
        "truncated": torch.zeros(2, 3, dtype=torch.bool),
        "cut": torch.zeros(2, 3, dtype=torch.bool),
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
        "parsed": torch.ones(2, 3, dtype=torch.bool),
        "episode_ids": torch.tensor([[0, 0, 2], [1, 1, 0]]),
        "reset_seeds": torch.tensor([[7, 7, 9], [8, 8, 0]]),
        "next_values": torch.stack([values[[1, 0, 0]], values[[1, 0, 0]]]),
        "episode_returns": torch.tensor([1.0, -1.0, 2.0]),
        "episode_lengths": torch.tensor([2.0, 1.0, 2.0]),
        "episode_penalties": torch.zeros(3),
        "episode_successes": torch.full((3,), torch.nan),
        "seconds": 0.1,
    }
    return Rollout(**{**columns, **changes})


# -- free text -----------------------------------------------------------------------------------------------
TEXT_PROMPTS = (make_prompt("red"), make_prompt("green"), make_prompt("a long way round"))
RESPONSE_IDS = [(70, 71), (72,), (70, 75, 76, 77), (80, 81, 82), (83, 84), (85,)]
"""The responses of `text_rollout`: episode 0 has 0 and 1, episode 1 has 2 and 3, episodes 2 and 3 one
each."""


def text_learner(algorithm: type[PolicyLearner], **settings: Any) -> Any:
    """An algorithm with its own loss, PPO with that of the others and without warm-up. Nothing pulls back: the
    log-probabilities of `text_rollout` are no policy's."""
    loss = replace(POLICY_GRADIENT, old_kl_coef=0.0) if algorithm in (A2C, REINFORCE) else LossConfig()
    return make_learner(algorithm, GenerationPolicy(max_new_tokens=5), loss, **settings)


def text_rollout(**changes: Any) -> Rollout:
    """Two streams: episodes 0 and 2, 1 and 3. Returns 3 and 1 from seed 7, 0.5 and 0.5 from seed 8."""
    logprobs = torch.linspace(-3, -1, 20).tolist()
    columns = {
        "prompts": TEXT_PROMPTS,
        "prompt_values": torch.zeros(3),
        "responses": tuple(
            Response(ids, tuple(logprobs[: len(ids)]), finished=len(ids) < 4) for ids in RESPONSE_IDS
        ),
        "prompt_index": torch.tensor([[0, 1, 2], [0, 2, 2]]),
        "response_index": torch.tensor([[0, 1, 4], [2, 3, 5]]),
        "rewards": torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 0.5]]),
        "terminated": torch.tensor([[False, True, True], [False, True, True]]),
        "truncated": torch.zeros(2, 3, dtype=torch.bool),
        "cut": torch.zeros(2, 3, dtype=torch.bool),
        "mask": torch.ones(2, 3, dtype=torch.bool),
        "parsed": torch.tensor([[True, True, True], [True, False, True]]),
        "episode_ids": torch.tensor([[0, 0, 2], [1, 1, 3]]),
        "reset_seeds": torch.tensor([[7, 7, 8], [7, 7, 8]]),
        "next_values": torch.zeros(2, 3),
        "episode_returns": torch.tensor([3.0, 1.0, 0.5, 0.5]),
        "episode_lengths": torch.tensor([2.0, 2.0, 1.0, 1.0]),
        "episode_penalties": torch.zeros(4),
        "episode_successes": torch.full((4,), torch.nan),
        "seconds": 0.1,
    }
    return Rollout(**{**columns, **changes})
