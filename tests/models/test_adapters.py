"""Going on from an adapter that is there already."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file

from helpers import tiny
from helpers.runs import QUICK, lgym, scalars
from lgym.models import LLMConfig, LoraSettings, build_llm
from lgym.models.export import load_merged
from lgym.types import ConfigError

REPLAY = '{"class_path": "lgym.data.ReplayBuffer", "init_args": {"minibatch_size": 8, "learning_starts": 8}}'


@pytest.fixture(scope="module")
def run(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("run")
    lgym("fit", folder, model_folder, trainer__max_epochs=4, **QUICK)
    return folder / "version_0"


def built(model_folder, **settings):
    config = LLMConfig(str(model_folder), value_hidden_size=16, **settings)
    return build_llm(config, dtype=torch.float32, device=torch.device("cpu"))


def test_a_run_goes_on_as_good_as_the_one_before(run, model_folder, tmp_path):
    """Its first evaluation is the other's last, and its value knows what is earned; a run from the base begins
    below."""
    options = {**QUICK, "model__init_args__llm__lora__r": None, "trainer__max_epochs": 1}
    options["model.init_args.llm.lora.r"] = None
    lgym(
        "fit", tmp_path / "on", model_folder, **{"model__init_args__llm__adapter": run / "adapter"}, **options
    )
    lgym("fit", tmp_path / "anew", model_folder, **options)
    before, on, anew = scalars(run.parent), scalars(tmp_path / "on"), scalars(tmp_path / "anew")
    name = "val_sampled/return_mean"
    assert on[name][0] == list(before[name].values())[-1]
    assert anew[name][0] == before[name][0] < on[name][0]
    explained = "value/explained_variance"
    assert next(iter(anew[explained].values())) == 0.0
    assert next(iter(on[explained].values())) != 0.0


def test_adapter_and_value_head_are_those_of_the_folder(run, model_folder):
    llm = built(model_folder, adapter=str(run / "adapter"))
    saved = load_file(run / "adapter" / "adapter_model.safetensors")
    weights = {name.replace(".default", ""): p for name, p in llm.model.named_parameters() if p.requires_grad}
    assert weights.keys() == saved.keys()
    for name, weight in saved.items():
        assert torch.equal(weights[name], weight.float())
    for name, weight in load_file(run / "adapter" / "value_head.safetensors").items():
        assert torch.equal(llm.value_head.state_dict()[name], weight)


def test_an_agent_whose_head_chooses_is_no_adapter(model_folder, tmp_path):
    """Its folder says so, and neither goes on from it nor exports it."""
    dqn = {"model": "lgym.modules.DQN", "model__init_args__action_values": "head"}
    lgym("fit", tmp_path, model_folder, trainer__max_epochs=1, data__replay=REPLAY, **dqn)
    adapter = tmp_path / "version_0" / "adapter"
    assert "action_head.safetensors" in (adapter / "README.md").read_text()
    assert load_file(adapter / "action_head.safetensors")["output.weight"].shape == (2, 16)
    for load in (
        lambda: built(model_folder, adapter=str(adapter)),
        lambda: load_merged(str(model_folder), adapter),
    ):
        with pytest.raises(ConfigError, match="its choices come from a head"):
            load()


def test_another_width_of_the_value_head_is_a_new_one(run, model_folder):
    config = LLMConfig(str(model_folder), value_hidden_size=8, adapter=str(run / "adapter"))
    llm = build_llm(config, dtype=torch.float32, device=torch.device("cpu"))
    assert float(llm.value_head.output.weight.abs().max()) == 0.0


def test_an_adapter_of_peft_is_trained_without_its_dropout(model_folder, tmp_path):
    lora = LoraConfig(r=2, lora_dropout=0.5, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(tiny.causal_lm(), lora).save_pretrained(tmp_path)
    llm = built(model_folder, adapter=str(tmp_path)).train()
    assert {p.numel() for name, p in llm.model.named_parameters() if p.requires_grad} == {2 * 64}
    dropouts = [module for module in llm.modules() if isinstance(module, torch.nn.Dropout)]
    assert dropouts
    assert all(module.p == 0 for module in dropouts)


def test_a_block_of_peft_may_be_a_number(model_folder, tmp_path):
    lora = LoraConfig(r=2, target_modules=["q_proj"], layers_to_transform=1, task_type="CAUSAL_LM")
    get_peft_model(tiny.causal_lm(), lora).save_pretrained(tmp_path)
    llm = built(model_folder, adapter=str(tmp_path), lora=LoraSettings(last_blocks=1))
    trained = {name for name, p in llm.model.named_parameters() if p.requires_grad}
    assert trained
    assert all(".layers.1." in name for name in trained)


def test_virtual_tokens_are_no_adapter(model_folder, tmp_path):
    """It was said that they do not fit the model."""
    virtual = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(tiny.causal_lm(), virtual).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"consists of virtual tokens \(PromptTuningConfig\)"):
        built(model_folder, adapter=str(tmp_path))


def test_what_does_not_fit_is_refused(run, model_folder, tmp_path):
    with pytest.raises(ConfigError, match="`lora: null` trains every weight"):
        LLMConfig("tiny", adapter="somewhere", lora=None)
    with pytest.raises(ConfigError, match="holds no adapter"):
        built(model_folder, adapter=str(tmp_path))
    tiny.causal_lm(hidden_size=32).save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="does not fit this model"):
        built(tmp_path, adapter=str(run / "adapter"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"r": 8}, "llm.lora.r is 8, and the adapter in .* has 4"),
        ({"alpha": 2}, "llm.lora.alpha is 2, and the adapter in .* has 8"),
        ({"last_blocks": 1}, "llm.lora.last_blocks is 1, and the adapter in .* has 2"),
        ({"dropout": 0.5}, "llm.lora.dropout is 0.5"),
    ],
)
def test_settings_of_another_adapter_are_refused(settings, said, run, model_folder):
    """Those of a run's own YAML are the same, and pass."""
    built(model_folder, adapter=str(run / "adapter"), lora=LoraSettings(r=4, alpha=8, last_blocks=2))
    with pytest.raises(ConfigError, match=said):
        built(model_folder, adapter=str(run / "adapter"), lora=LoraSettings(**settings))
