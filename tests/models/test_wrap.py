"""Models that come as objects: whatever they are wrapped in, they answer as before, and what should be
trained is."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn

from helpers import tiny
from lgym.models import LoraSettings, load_model_and_tokenizer, wrap_pretrained

PROMPT = (3, 4, 5, 6, 7, 8)


def adapted(dropout: float = 0.05, **keywords):
    """As LlamaGym's users make theirs, with adapters that are not zero."""
    settings = LoraConfig(
        r=4, lora_dropout=dropout, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **keywords
    )
    model = get_peft_model(tiny.causal_lm(), settings)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return model


class WithValueHead(nn.Module):
    """What trl's `AutoModelForCausalLMWithValueHead` looks like."""

    def __init__(self, model):
        super().__init__()
        self.pretrained_model = model
        self.v_head = nn.Linear(64, 1)


def logits(llm):
    states, index = llm.hidden_states([PROMPT], [len(PROMPT)], row_length=64)
    return llm.lm_head.logits(states[index[0][0]])


def trained(llm):
    return {name for name, p in llm.model.named_parameters() if p.requires_grad}


def test_a_plain_model_gets_adapters():
    model = tiny.causal_lm()
    expected = model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    llm = wrap_pretrained(model, tiny.tokenizer(), LoraSettings(r=4))
    torch.testing.assert_close(logits(llm), expected, atol=1e-5, rtol=1e-5)
    assert trained(llm)
    assert all("lora_" in name for name in trained(llm))


def test_every_weight_is_trained_where_there_are_no_adapters():
    llm = wrap_pretrained(tiny.causal_lm(), tiny.tokenizer(), None)
    assert trained(llm) == {name for name, _ in tiny.causal_lm().named_parameters()}


@pytest.mark.parametrize("headed", [False, True])
def test_adapters_that_are_there_are_trained_on(headed):
    """They keep their weights, lose their dropout, and no others are added."""
    model = adapted().eval()
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    expected = model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    llm = wrap_pretrained(
        WithValueHead(model) if headed else model, tiny.tokenizer(), LoraSettings(r=8)
    ).train()
    torch.testing.assert_close(logits(llm), expected, atol=1e-5, rtol=1e-5)
    assert trained(llm) == names
    with llm.reference():
        assert not torch.allclose(logits(llm), expected, atol=1e-2)


def test_adapters_in_bf16_are_trained_in_fp32():
    llm = wrap_pretrained(adapted().to(torch.bfloat16), tiny.tokenizer(), LoraSettings())
    assert {p.dtype for p in llm.parameters() if p.requires_grad} == {torch.float32}


def test_the_model_stays_one_of_transformers():
    """It generates as before, and saves its adapters as a plain peft folder."""
    model, ids = tiny.causal_lm(), torch.tensor([PROMPT])
    before = model.generate(ids, do_sample=False, max_new_tokens=5)
    llm = wrap_pretrained(model, tiny.tokenizer(), LoraSettings(r=4))
    assert torch.equal(llm.model.generate(input_ids=ids, do_sample=False, max_new_tokens=5), before)


def test_the_saved_adapters_load_into_peft(tmp_path):
    from peft import PeftModel

    llm = wrap_pretrained(adapted(), tiny.tokenizer(), LoraSettings())
    llm.model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(tiny.causal_lm(), tmp_path)
    got = loaded(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(got, logits(llm), atol=1e-5, rtol=1e-5)


def test_frozen_adapters_are_refused():
    model = adapted(inference_mode=True)
    with pytest.raises(ValueError, match="is_trainable=True"):
        wrap_pretrained(model, tiny.tokenizer(), LoraSettings())


def test_virtual_tokens_are_refused():
    """They did nothing: the model was run without them."""
    model = get_peft_model(tiny.causal_lm(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ValueError, match="consists of virtual tokens"):
        wrap_pretrained(model, tiny.tokenizer(), LoraSettings())


def test_a_model_on_several_devices_is_refused():
    """It was said to scale its logits in a way of its own."""
    model = tiny.causal_lm()
    model.lm_head.to("meta")
    with pytest.raises(ValueError, match=r"several devices \(cpu, meta\)"):
        wrap_pretrained(model, tiny.tokenizer(), LoraSettings())


def test_coarse_weights_are_not_trained():
    with pytest.raises(
        ValueError, match=r"in torch.bfloat16, where small steps are lost. Load it with dtype=torch.float32"
    ):
        wrap_pretrained(tiny.causal_lm(torch.bfloat16), tiny.tokenizer(), None)


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="all weights .* are frozen"):
        wrap_pretrained(tiny.causal_lm().requires_grad_(False), tiny.tokenizer(), None)


def test_what_is_no_causal_model_is_refused():
    with pytest.raises(ValueError, match="Linear is no causal model"):
        wrap_pretrained(nn.Linear(2, 2), tiny.tokenizer(), LoraSettings())
    with pytest.raises(ValueError, match="without its tokenizer"):
        wrap_pretrained(tiny.causal_lm(), None, LoraSettings())


def test_adapters_start_from_their_seed():
    """And the program's own randomness is left as it was."""
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    states = [
        wrap_pretrained(tiny.causal_lm(), tiny.tokenizer(), LoraSettings(r=4), seed=s).state_dict()
        for s in (1, 1, 2)
    ]
    assert torch.equal(torch.rand(1), expected)
    name = next(name for name in states[0] if "lora_A" in name)
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])


def test_a_name_gives_model_and_tokenizer(model_folder):
    model, tokenizer = load_model_and_tokenizer(str(model_folder))
    assert model.dtype == torch.float32  # not in the registry
    assert tokenizer.chat_template == tiny.TEMPLATE
    llm = wrap_pretrained(model, tokenizer, LoraSettings(r=4))
    assert llm.name == str(model_folder)
    assert load_model_and_tokenizer(str(model_folder), dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_weights_stay_fixed_within_another_fixed():
    """What is read in one stays known in the next; kv_cache the outer one nothing does."""
    llm = wrap_pretrained(tiny.causal_lm(), tiny.tokenizer(), LoraSettings(r=4))
    with llm.frozen_weights():
        with llm.frozen_weights():
            llm.store_kv([object()])
        assert len(llm.kv_caches) == 1
    assert llm.kv_caches == []
