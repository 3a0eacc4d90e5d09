"""docs/llamagym.md: its code runs, and says what its diffs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from helpers.runs import lgym
from lgym import Agent
from lgym.loop.keywords import (
    CRITIC,
    GENERATION,
    KL_PENALTY,
    LEARNING,
    LOSS,
    Pace,
    build_ppo,
    generation_policy,
    read_pace,
)
from lgym.models import LLMConfig

DOC = (Path(__file__).parents[2] / "docs" / "llamagym.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOC, flags=re.DOTALL)


CODE = blocks("python")[0]


def test_the_diffs_lead_to_the_code():
    added = [line[1:] for block in blocks("diff")[:2] for line in block.splitlines() if line.startswith("+")]
    assert len(added) == 3
    assert set(added) <= set(CODE.splitlines())


def test_the_code_plays(model_folder):
    """On the tiny model, whose replies name no action, and a few hands."""
    code = CODE
    for words, instead in (("smollm2-135m-instruct", str(model_folder)), ("range(2000)", "range(2)")):
        assert words in code
        code = code.replace(words, instead)
    space: dict = {}
    with pytest.warns(UserWarning, match="extract_action raised AttributeError"):
        exec(code, space)
    assert isinstance(space["agent"], Agent)
    assert space["train_stats"] == {}
    assert space["agent"].extract_action("I say Action: 1.") == 1


def test_the_yaml_runs(tmp_path, model_folder, monkeypatch):
    (tmp_path / "my_agents.py").write_text(CODE.split("model, tokenizer =")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "config.yaml"
    config.write_text(blocks("yaml")[0])
    assert yaml.safe_load(config.read_text())["data"]["history"] == "full"
    lgym(
        "fit", tmp_path, model_folder, config, trainer__accelerator="cpu", trainer__enable_progress_bar="false",
        trainer__max_epochs=1, trainer__check_val_every_n_epoch=2, data__episodes_per_rollout=4,
        model__init_args__policy__max_new_tokens=2,
    )  # fmt: skip


def test_the_tables_tell_the_defaults():
    """Each keyword of the tables is known, and a default that is a number is the one that there is."""
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", DOC, flags=re.MULTILINE)
    told = {}
    for names, defaults in rows[1:]:
        if not names.startswith("`ppo_config_dict`"):
            values = [value.strip() for value in defaults.split(",")]
            told |= dict(zip(re.findall(r"`(\w+)`", names), values, strict=False))
    assert len(told) == 18
    pace, policy = read_pace({}, None), generation_policy({})
    module = build_ppo({}, policy, LLMConfig())
    settings = module.loss_config
    assert told["max_new_tokens"] == str(policy.max_new_tokens)
    assert told["temperature"] == str(policy.sampling.temperature)
    for name in vars(pace):
        assert told[name] == str(getattr(pace, name)), name
    assert [told["gamma"], told["lam"], told["vf_coef"], told["cliprange"], told["init_kl_coef"]] == [
        str(module.gamma), str(module.gae_lambda), str(module.critic.value_coef), str(settings.clip_low),
        f"{settings.kl_coef:g}",
    ]  # fmt: skip
    assert float(told["learning_rate"]) == 3e-4
    assert told.pop("kl_penalty") == f"`{KL_PENALTY}`"
    known = {*GENERATION, "do_sample", *LEARNING, *CRITIC, *LOSS, "learning_rate", "cliprange", *vars(Pace())}
    assert set(told) <= known
