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
from lgym.callbacks.export import base_of, model_card

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
    assert front == {"library_name": "peft"}
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
    text = model_card("somebody/their-model", True, "", "GRPO", "Letter-v0", adapter=True)
    assert yaml.safe_load(text.split("---\n")[1]) == {
        "base_model": "somebody/their-model",
        "library_name": "peft",
    }
    assert 'AutoModelForCausalLM.from_pretrained("somebody/their-model")' in text
    assert "by GRPO on `Letter-v0`" in text
    assert "local" not in text
