"""LlamaGym's keywords: each has an effect, a warning, or an error that names the way out."""

from __future__ import annotations

import warnings

import pytest

from helpers import tiny
from helpers.own_loop import VowelAgent
from lgym.loop.keywords import (
    LEARNING,
    LOSS,
    OFF,
    WITHOUT_MEANING,
    Pace,
    build_ppo,
    generation_policy,
    read_pace,
)
from lgym.models import LLMConfig
from lgym.modules import LossConfig


def learner(**given):
    return build_ppo(given, generation_policy({}), LLMConfig())


def test_without_keywords_replies_are_drawn_from_what_is_trained():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = generation_policy({})
    sampling = policy.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, policy.max_new_tokens) == (1.0, 1.0, 0, 32)


def test_generation_keywords():
    """As LlamaGym takes them, with a folder before the name or not."""
    given = {
        "generate/max_new_tokens": 8,
        "generate/temperature": 0.9,
        "do_sample": True,
        "top_k": 5,
        "stop_strings": ["\n"],
    }
    with pytest.warns(UserWarning, match="top_k 5"):
        policy = generation_policy(given)
    assert (policy.max_new_tokens, policy.sampling.temperature, policy.sampling.top_k) == (8, 0.9, 5)
    assert policy.stop == ("\n",)


@pytest.mark.parametrize(
    ("name", "value"), [("do_sample", False), ("num_beams", 4), ("repetition_penalty", 1.2)]
)
def test_what_draws_otherwise_is_refused(name, value):
    with pytest.raises(ValueError, match=f"says {name}: {value!r}.*leave it out"):
        generation_policy({name: value})


def test_an_unknown_keyword_is_refused():
    with pytest.raises(ValueError, match="'max_tokens', which lgym does not know. It takes .*max_new_tokens"):
        generation_policy({"max_tokens": 8})
    with pytest.raises(ValueError, match="'lr', which lgym does not know. It takes .*learning_rate"):
        learner(lr=1e-4)


def test_batches():
    given = {
        "batch_size": 16,
        "mini_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "ppo_epochs": 3,
        "seed": 5,
    }
    assert read_pace({**given, "max_grad_norm": 0.5, "learning_rate": 1e-4}, None) == Pace(
        16, 4, 2, 3, 0.5, 5
    )
    assert read_pace(given, 7).seed == 7
    assert read_pace({"max_grad_norm": None}, None) == Pace()  # trl's default


@pytest.mark.parametrize(
    "name", ["batch_size", "mini_batch_size", "gradient_accumulation_steps", "ppo_epochs"]
)
def test_batches_have_a_size(name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        read_pace({name: 0}, None)


def test_trls_learning_keywords():
    module = learner(learning_rate=1e-4, gamma=0.9, lam=0.8, vf_coef=0.2, cliprange=0.3)
    assert (module.gamma, module.gae_lambda, module.critic.value_coef) == (0.9, 0.8, 0.2)
    assert (module.loss_config.clip_low, module.loss_config.clip_high) == (0.3, 0.3)
    assert (
        module.make_optimizer([*module.parameters()] or [tiny.causal_lm().lm_head.weight]).defaults["lr"]
        == 1e-4
    )


def test_none_is_as_good_as_not_given():
    """It stands for a default in trl and transformers; but without clipping is something that one may
    want."""
    sampling = generation_policy(
        dict.fromkeys(("temperature", "top_p", "top_k", "stop", "do_sample"))
    ).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert generation_policy({"max_new_tokens": None}).max_new_tokens == 32
    module = learner(
        gamma=None, lam=None, learning_rate=None, cliprange=None, init_kl_coef=None, kl_penalty=None
    )
    assert (module.gamma, module.gae_lambda, module.loss_config) == (0.99, 0.95, LossConfig())
    assert module.make_optimizer([tiny.causal_lm().lm_head.weight]).defaults["lr"] == 3e-4
    assert module.make_lr_scheduler is None  # nobody knows how many updates there will be
    assert learner(clip_low=None, clip_high=None).loss_config.clip_low is None
    with pytest.raises(ValueError, match="'lr', which lgym does not know"):
        learner(lr=None)


def test_trls_divergence_is_taken_from_the_rewards():
    settings = learner(init_kl_coef=0.2, adap_kl_ctrl=False).loss_config
    assert (settings.kl_coef, settings.kl_in, settings.ref_kl_estimator) == (0.2, "reward", "k1")
    assert learner(kl_penalty="kl").loss_config == LossConfig()
    with pytest.raises(ValueError, match="kl_penalty is 'mse'; lgym has 'kl'"):
        learner(init_kl_coef=0.2, kl_penalty="mse")


def test_lgyms_own_names_are_taken_as_well():
    module = learner(entropy_coef=0.01, loss_aggregation="token_mean", value_lr_scale=2.0)
    assert (module.loss_config.entropy_coef, module.critic.value_lr_scale) == (0.01, 2.0)
    assert module.loss_config.loss_aggregation == "token_mean"


@pytest.mark.parametrize("name", OFF)
def test_what_lgym_does_not_do_is_refused_unless_off(name):
    learner(**{name: False})
    with pytest.raises(ValueError, match=f"says {name}: True, which lgym does not do: {OFF[name]}"):
        learner(**{name: True})


@pytest.mark.parametrize("name", WITHOUT_MEANING)
def test_what_has_no_meaning_is_told(name):
    with pytest.warns(UserWarning, match=f"'{name}', which does nothing here"):
        learner(**{name: 1})


def test_no_keyword_means_two_things():
    tables = [
        set(LEARNING),
        set(LOSS),
        set(OFF),
        set(WITHOUT_MEANING),
        {"learning_rate", "cliprange", "kl_penalty"},
    ]
    assert sum(map(len, tables)) == len(set().union(*tables))


def test_keywords_are_read_before_the_model_is_touched():
    model = tiny.causal_lm()
    with pytest.raises(ValueError, match="batch_size"):
        VowelAgent(model, tiny.tokenizer(), "cpu", None, {"batch_size": 0})
    with pytest.raises(ValueError, match="history is -1"):
        VowelAgent(model, tiny.tokenizer(), "cpu", history=-1)
    assert not any("lora" in name for name, _ in model.named_parameters())
