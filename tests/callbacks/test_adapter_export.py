"""What is exported says what it is, loads without lgym, and tells nobody where it was made."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM

from helpers import tiny
from helpers.runs import lgym
from lgym.callbacks.adapter_export import base_of
from lgym.callbacks.model_card import model_card

CONFIG = """
trainer: {accelerator: cpu, enable_progress_bar: false, max_epochs: 1, limit_val_batches: 0}
model: {class_path: lgym.modules.PPO, init_args: {llm: {lora: %s}}}
data: {env: Echo-v0, agent: helpers.echo.EchoAgent, num_envs: 4, episodes_per_rollout: 8}
"""


def exported(tmp_path, model_folder, lora="{r: 4}"):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG % lora)
    lgym("fit", tmp_path / "runs", model_folder, config)
    return tmp_path / "runs" / "version_0" / "adapter"


def card(folder):
    """Its front matter as data, and its words."""
    _, front, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


@pytest.mark.parametrize("lora", ["{r: 4}", "null"], ids=["adapter", "whole"])
def test_no_file_names_a_folder_of_this_machine(tmp_path, model_folder, lora):
    """peft's card and configuration had the path of the base model in them, with the user's name."""
    folder = exported(tmp_path, model_folder, lora)
    files = [path for path in folder.iterdir() if path.suffix != ".safetensors"]
    assert {"README.md", "tokenizer_config.json"} <= {path.name for path in files}
    for path in files:
        text = path.read_text(encoding="utf-8")
        for place in (model_folder, tmp_path):
            assert str(place) not in text, path.name


def test_a_local_base_is_told_by_its_name_alone(tmp_path, model_folder):
    """It is on no Hub, so the front matter names none, and the reader is told that it is a folder."""
    folder = exported(tmp_path, model_folder)
    front, text = card(folder)
    assert front == {"library_name": "peft", "tags": ["reinforcement-learning", "lgym", "Echo-v0"]}
    assert "A LoRA adapter trained with lgym by PPO on `Echo-v0`." in text
    assert f"`{model_folder.name}`, a local folder" in text
    assert "PeftModel.from_pretrained" in text
    assert "value_head.safetensors" in text
    assert "More Information Needed" not in text
    assert (
        json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        == model_folder.name
    )


def test_it_loads_as_the_card_says(tmp_path, model_folder):
    """With the base beside it: other answers than the base's own."""
    folder = exported(tmp_path, model_folder)
    ids = torch.tensor([tiny.tokenizer().encode("red")])
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, folder)(ids).logits
    assert not torch.equal(before, after)


def test_a_hub_id_is_the_base(tmp_path):
    """Of a registry name its id, never the cache folder that the weights were read from."""
    assert base_of("smollm2-135m-instruct") == ("HuggingFaceTB/SmolLM2-135M-Instruct", True)
    assert base_of("somebody/their-model") == ("somebody/their-model", True)
    assert base_of(str(tmp_path)) == (tmp_path.name, False)
    assert base_of(f"{tmp_path}/") == (tmp_path.name, False)


RUN = {
    "algorithm": "GRPO",
    "env": "Letter-v0",
    "env_kwargs": {"length": 2},
    "system_prompt": "Say the letter.",
    "eval_episodes": 50,
    "reference_returns": {"random": 0.25},
    "sessions": [
        {
            "command": "lgym fit --config /home/me/letters.yaml --trainer.default_root_dir=~/secret/runs runs/b.yaml",
            "commit": "abc+",
            "machine": "a CPU, 2 cores, 2 threads",
            "versions": {"lgym": "0.2.0"},
        }
    ],
    "rollouts": 7,
    "turns": 7000,
    "initial_results": {"val_sampled/return_mean": 0.1, "val_sampled/return_ci95": 0.01},
    "results": {
        "val_sampled/return_mean": 0.9,
        "val_sampled/return_std": 0.3,
        "val_sampled/return_ci95": 0.083,
    },
}


def test_the_card_says_what_was_reached_and_how():
    """The front matter is the Hub's, as its leaderboards of reinforcement learning read it."""
    text = model_card(
        RUN, base="somebody/their-model", on_hub=True, where="", what="An adapter", library="peft", load="so"
    )
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["base_model"] == "somebody/their-model"
    assert front["library_name"] == "peft"
    assert front["tags"] == ["reinforcement-learning", "lgym", "Letter-v0"]
    (result,) = front["model-index"][0]["results"]
    assert front["model-index"][0]["name"] == "GRPO"
    assert result["dataset"]["name"] == "Letter-v0"
    assert result["metrics"][0]["value"] == "0.90 +/- 0.30"
    assert "by GRPO on `Letter-v0` (length: 2)" in text
    assert "| this one, sampled | 0.1000 ± 0.0100 | 0.9000 ± 0.0830 |" in text
    assert "| random |  | 0.2500 |" in text
    assert "50 episodes" in text
    assert "lgym fit --config letters.yaml --trainer.default_root_dir=runs runs/b.yaml" in text
    assert "7 rollouts, 7,000 turns; a CPU, 2 cores, 2 threads; lgym 0.2.0, commit abc+" in text
    assert "Say the letter." in text
    assert "local" not in text


def test_a_card_of_an_unknown_run_says_less():
    text = model_card({}, base="base", on_hub=False, where="", what="An adapter", library="peft", load="so")
    assert yaml.safe_load(text.split("---\n")[1]) == {
        "library_name": "peft",
        "tags": ["reinforcement-learning", "lgym"],
    }
    assert "## " not in text


def test_the_card_of_a_run_has_its_results(tmp_path, model_folder):
    lgym("fit", tmp_path, model_folder)
    front, text = card(tmp_path / "version_0" / "adapter")
    greedy, sampled = front["model-index"][0]["results"][0]["metrics"]
    assert (greedy["name"], sampled["name"]) == ("mean_reward (greedy)", "mean_reward (sampled)")
    assert "| this one, greedy | 0." in text
    assert "Say the word." in text
    assert "2 rollouts, 64 turns" in text
