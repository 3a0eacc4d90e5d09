"""LlamaGym's keywords of transformers and trl in lgym's terms. None is ignored in silence."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from lgym.models import LLMConfig
from lgym.modules import PPO, CriticConfig, LossConfig
from lgym.policies import GenerationPolicy
from lgym.types import ConfigError

# Keywords of `generate` that have a meaning here, and what `GenerationPolicy` calls them.
GENERATION = {
    "max_new_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_strings": "stop",
    "stop": "stop",
}

# Keywords of `generate` that are taken at the one value at which tokens are drawn from what the loss trains.
DRAWN_OTHERWISE = {"do_sample": True, "num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0}

# Keywords of `PPOConfig` and of `PPO`, and what `PPO` calls them.
LEARNING = {
    "gamma": "gamma",
    "lam": "gae_lambda",
    "gae_lambda": "gae_lambda",
    "whiten_advantages": "whiten_advantages",
    "advantage_level": "advantage_level",
}

# Keywords of `PPOConfig` and of `CriticConfig`, and their names there.
CRITIC = {
    "vf_coef": "value_coef",
    "value_coef": "value_coef",
    "value_lr_scale": "value_lr_scale",
    "detach_value": "detach_value",
}

# Keywords of `PPOConfig` and of `LossConfig`, and what `LossConfig` calls them. `cliprange` is both its
# clips.
LOSS = {"init_kl_coef": "kl_coef"} | {
    field.name: field.name for field in fields(LossConfig) if field.name != "target_kl"
}

KL_PENALTY = "kl"  # trl's name of what is subtracted from the rewards here

# Keywords of `PPOConfig` that are taken where they switch something off; else the way out.
OFF = {
    "adap_kl_ctrl": "give init_kl_coef the weight that it is to keep",
    "early_stopping": "lower ppo_epochs or learning_rate",
    "use_score_scaling": "leave it out: values are learned from normalized returns",
    "use_score_norm": "leave it out: whiten_advantages, which is on, does its work",
    "score_clip": "clip the reward before agent.assign_reward",
    "whiten_rewards": "leave it out: whiten_advantages, which is on, does its work",
    "is_encoder_decoder": "give a causal model",
}

# Keywords that are warned about, and why they do nothing.
WITHOUT_MEANING = {
    **dict.fromkeys(("target", "horizon"), "the weight of the divergence is init_kl_coef and stays"),
    **dict.fromkeys(
        ("target_kl", "ratio_threshold"),
        "nothing is stopped early or left out; lower ppo_epochs or learning_rate",
    ),
    "cliprange_value": "values are not clipped",
    "steps": "your loop says how long it goes on",
    "forward_batch_size": "mini_batch_size bounds the memory",
    **dict.fromkeys(("optimize_cuda_cache", "optimize_device_cache"), "mini_batch_size bounds the memory"),
    **dict.fromkeys(("compare_steps", "world_size"), "one device"),
    **dict.fromkeys(
        ("log_with", "tracker_kwargs", "tracker_project_name", "task_name", "exp_name", "project_kwargs"),
        "log what terminate_episode returns",
    ),
    **dict.fromkeys(
        (
            "model_name",
            "query_dataset",
            "reward_model",
            "remove_unused_columns",
            "accelerator_kwargs",
            "is_peft_model",
        ),
        "the model and the rewards are those that you give",
    ),
    "push_to_hub_if_best_kwargs": "agent.model.push_to_hub pushes",
    "pad_token_id": "nothing is padded",
    "use_cache": "keys and values are kept",
}

LEARNING_RATE = 3e-4

# Keywords to which None means something; of any other it is as good as not given.
SAYING_NONE = {"clip_low", "clip_high"}


@dataclass(frozen=True)
class Pace:
    """The size of an update and its passes; the names are trl's.

    Args:
        batch_size: turns after which the episode that ends is learned from, with those before it.
        mini_batch_size: distinct responses of one gradient, with every turn that gave them.
        gradient_accumulation_steps: gradients of one optimizer step.
        ppo_epochs: passes over a batch.
        max_grad_norm: the norm that the gradient is clipped to.
        seed: of everything random.
    """

    batch_size: int = 64
    mini_batch_size: int = 16
    gradient_accumulation_steps: int = 1
    ppo_epochs: int = 4
    max_grad_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "mini_batch_size", "gradient_accumulation_steps", "ppo_epochs"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, 1 or more.")
        if self.max_grad_norm <= 0:
            raise ConfigError(f"max_grad_norm is {self.max_grad_norm}; it must be above 0.")


PACE = [field.name for field in fields(Pace)]


def generation_policy(given: Mapping[str, Any]) -> GenerationPolicy:
    """The policy of a `generate_config_dict`; names may have a folder before them, as in `generate/top_p`.

    Raises:
        ValueError: for an unknown keyword, or one that would sample from another distribution than the loss
            trains.
    """
    keywords = _known("generate_config_dict", given, [*GENERATION, *DRAWN_OTHERWISE])
    for name, value in DRAWN_OTHERWISE.items():
        if keywords.get(name, value) != value:
            raise ConfigError(
                f"generate_config_dict says {name}: {keywords[name]!r}. Responses are drawn one by one from "
                f"the distribution that the loss trains: leave it out, or set it to {value!r}."
            )
    values: dict[str, Any] = {"max_new_tokens": 32, "top_k": 0, "top_p": 1.0}  # 32 as LlamaGym
    values |= _renamed(keywords, GENERATION)
    if values["top_k"] or values["top_p"] < 1.0:
        warnings.warn(
            f"top_k {values['top_k']} and top_p {values['top_p']} cut off part of the distribution that the "
            "loss trains, so what learns is not quite what plays (policy/logprob_diff_max says by how much). "
            "Leave them out.",
            stacklevel=2,
        )
    return GenerationPolicy(**values)


def read_pace(given: Mapping[str, Any], seed: int | None) -> Pace:
    """The part of a `ppo_config_dict` that is about batches; `seed` overrides its own."""
    values = {name: value for name, value in _named(given).items() if name in PACE and value is not None}
    return Pace(**values if seed is None else values | {"seed": seed})


def build_ppo(given: Mapping[str, Any], policy: GenerationPolicy, llm: LLMConfig) -> PPO:
    """The algorithm of a `ppo_config_dict`. Without `learning_rate` its own.

    Raises:
        ValueError: for an unknown keyword, or one that asks for what lgym does not do.
    """
    keywords = _known(
        "ppo_config_dict",
        given,
        ["learning_rate", "cliprange", "kl_penalty", *PACE, *LEARNING, *CRITIC, *LOSS, *OFF],
    )
    for name, way_out in OFF.items():
        if value := keywords.get(name):
            raise ConfigError(f"ppo_config_dict says {name}: {value!r}, which lgym does not do: {way_out}.")
    loss = _renamed(keywords, LOSS)
    if "cliprange" in keywords:
        loss = dict.fromkeys(("clip_low", "clip_high"), keywords["cliprange"]) | loss
    if keywords.get("kl_penalty", KL_PENALTY) != KL_PENALTY:
        raise ConfigError(
            f"kl_penalty is {keywords['kl_penalty']!r}; lgym has {KL_PENALTY!r} alone: the divergence "
            "from the model without adapters, subtracted from the rewards."
        )
    if "init_kl_coef" in keywords:  # trl takes it from the rewards
        loss = {"kl_in": "reward"} | loss
    values = _renamed(keywords, LEARNING)
    rate = keywords.get("learning_rate", LEARNING_RATE)
    values["optimizer"] = partial(torch.optim.AdamW, lr=rate, weight_decay=0.0)
    critic = CriticConfig(**{"detach_value": False} | _renamed(keywords, CRITIC))
    # without a schedule: the number of updates is not known
    return PPO(llm=llm, policy=policy, loss=LossConfig(**loss), critic=critic, lr_scheduler=None, **values)


def _renamed(keywords: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names[name]: value for name, value in keywords.items() if name in names}


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name.split("/")[-1]: value for name, value in given.items()}


def _known(config: str, given: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    named = _named(given)
    for name in [name for name in named if name not in known]:
        if name not in WITHOUT_MEANING:
            raise ConfigError(
                f"{config} says {name!r}, which lgym does not know. It takes {', '.join(sorted(known))}."
            )
        warnings.warn(
            f"{config} says {name!r}, which does nothing here: {WITHOUT_MEANING[name]}.", stacklevel=2
        )
    return {
        name: value
        for name, value in named.items()
        if name in known and (value is not None or name in SAYING_NONE)
    }
