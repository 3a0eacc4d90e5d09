"""GGUF files of trained models: read back, they say the same; llama.cpp's own layout is tested by numbers."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from helpers import tiny
from lgym.models import load_model_and_tokenizer
from lgym.models.export import GGUF_TYPES, load_merged, write_gguf, write_gguf_adapter
from lgym.models.export.gguf_layout import TensorLayout
from lgym.models.export.gguf_vocabulary import splitting_rule
from lgym.types import ConfigError

ALPHABET = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
MESSAGES = [{"role": "user", "content": "Hit or stay, at twelve?"}]


def qwen(config_class, model_class, head_dim):
    sizes = {name: getattr(tiny.config(), name) for name in
             ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
              "num_key_value_heads", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")}  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = model_class(config_class(**sizes, head_dim=head_dim, tie_word_embeddings=True)).eval()
        for name, weight in model.named_parameters():
            if "bias" in name or "norm" in name:
                weight.data.add_(0.1 * torch.randn(weight.shape))
    return model


MODELS = {
    "llama": tiny.causal_lm,
    "llama, tied": lambda: tiny.causal_lm(tie_word_embeddings=True),
    "qwen2": lambda: qwen(Qwen2Config, Qwen2ForCausalLM, 16),
    "qwen3": lambda: qwen(Qwen3Config, Qwen3ForCausalLM, 128),
}


def tokenizer():
    """The tiny one with a merge, as every real one has."""
    core = Tokenizer(models.BPE(vocab={**ALPHABET, "12": len(ALPHABET)}, merges=[("1", "2")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    pad, bos, eos = tiny.SPECIAL
    made = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=pad, bos_token=bos, eos_token=eos)
    made.chat_template = tiny.TEMPLATE
    return made


def logprobs(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits.float().log_softmax(-1)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LGYM_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", MODELS)
def test_a_file_is_read_back_as_the_same_model(kind, tmp_path):
    """Weights, tokenizer and template: a layer in another order gives other answers, not an error."""
    model = MODELS[kind]()
    file = tmp_path / "model.gguf"
    write_gguf(model, tokenizer(), file, kind="f32", name="tiny")
    loaded, words = load_model_and_tokenizer(str(file), dtype=torch.float32)
    ids = tokenizer().apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert words.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"] == ids
    difference = (logprobs(loaded, ids) - logprobs(model, ids)).abs().max()
    assert float(difference) < 1e-4
    assert float(logprobs(model, ids).exp().max()) > 0.05  # not all alike


@pytest.mark.parametrize(("kind", "bound"), [("f16", 0.005), ("bf16", 0.02), ("q8_0", 0.05), ("q4_0", 1.0)])
def test_smaller_types_are_smaller_and_near(kind, bound, tmp_path):
    """Of random weights, which quantization hurts more than trained ones."""
    model = tiny.causal_lm()
    sizes = {}
    for name in ("f32", kind):
        write_gguf(model, tokenizer(), tmp_path / f"{name}.gguf", kind=name, name="tiny")
        sizes[name] = sum(t.n_bytes for t in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors)
    bits = {"f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5}[kind]
    assert sizes[kind] / sizes["f32"] == pytest.approx(bits / 32, abs=0.02)
    loaded, _ = load_model_and_tokenizer(str(tmp_path / f"{kind}.gguf"), dtype=torch.float32)
    ids = tokenizer().encode("Hit or stay?")
    assert 0 < float((logprobs(loaded, ids) - logprobs(model, ids)).abs().mean()) < bound


def test_every_type_is_written(tmp_path):
    for kind in GGUF_TYPES:
        write_gguf(tiny.causal_lm(), tokenizer(), tmp_path / "model.gguf", kind=kind, name="tiny")
        kinds = {t.name: t.tensor_type.name.lower() for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
        assert kinds["blk.0.attn_q.weight"] == kind
        assert kinds["blk.0.attn_norm.weight"] == "f32"


def test_queries_and_keys_are_interleaved():
    """Rows 0, 1 | 2, 3 of a head of four become 0, 2, 1, 3, as llama.cpp rotates neighbors; those of Qwen
    stay."""
    layout = TensorLayout(tiny.config(num_attention_heads=1, num_key_value_heads=1))
    weight = torch.arange(4.0)[:, None]
    assert layout.rows("model.layers.0.self_attn.q_proj.weight", weight).flatten().tolist() == [0, 2, 1, 3]
    assert layout.rows("model.layers.0.self_attn.v_proj.weight", weight).flatten().tolist() == [0, 1, 2, 3]
    two = TensorLayout(tiny.config(num_attention_heads=4, num_key_value_heads=1))
    assert two.rows("model.layers.0.self_attn.k_proj.weight", weight).flatten().tolist() == [0, 2, 1, 3]
    qwen2 = TensorLayout(Qwen2Config(num_attention_heads=1, num_key_value_heads=1))
    assert qwen2.rows("model.layers.0.self_attn.q_proj.weight", weight).flatten().tolist() == [0, 1, 2, 3]


def adapter_of(base, folder, **settings):
    torch.manual_seed(0)
    modules = ["q_proj", "k_proj", "down_proj"]
    tuned = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=modules, **settings))
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.1)
    tuned.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return tuned


def tensors(file):
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(file).tensors}


def test_a_gguf_adapter_added_to_the_base_is_the_merged_model(model_folder, tmp_path):
    """In llama.cpp's layout: W + alpha / r B A, each part in its order."""
    adapter_of(tiny.causal_lm(), tmp_path / "adapter")
    merged, words = load_merged(str(model_folder), tmp_path / "adapter")
    write_gguf(merged, words, tmp_path / "merged.gguf", kind="f32", name="tiny")
    write_gguf(tiny.causal_lm(), words, tmp_path / "base.gguf", kind="f32", name="tiny")
    write_gguf_adapter(tmp_path / "adapter", merged.config, tmp_path / "adapter.gguf")
    base, whole, parts = (tensors(tmp_path / f"{name}.gguf") for name in ("base", "merged", "adapter"))
    names = {name.removesuffix(".lora_a") for name in parts if name.endswith(".lora_a")}
    assert len(names) == 3 * 2
    for name in whole:
        added = 8 / 4 * parts[f"{name}.lora_b"] @ parts[f"{name}.lora_a"] if name in names else 0.0
        np.testing.assert_allclose(whole[name], base[name] + added, atol=1e-5)
        assert (name in names) == (not np.array_equal(whole[name], base[name]))
    fields = gguf.GGUFReader(tmp_path / "adapter.gguf").fields
    said = {key: fields[key].contents() for key in fields if key.startswith(("adapter.", "general."))}
    assert said["general.type"] == "adapter"
    assert said["adapter.type"] == "lora"
    assert said["adapter.lora.alpha"] == 8.0
    assert said["general.architecture"] == "llama"


def test_the_merged_model_answers_as_the_adapter_on_its_base(model_folder, tmp_path):
    tuned = adapter_of(tiny.causal_lm(), tmp_path / "adapter").eval()
    merged, _ = load_merged(str(model_folder), tmp_path / "adapter")
    ids = tokenizer().encode("Hit or stay?")
    torch.testing.assert_close(logprobs(merged, ids), logprobs(tuned, ids), atol=1e-4, rtol=0)
    assert not torch.allclose(logprobs(merged, ids), logprobs(tiny.causal_lm(), ids), atol=1e-2)


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ([pre_tokenizers.ByteLevel(add_prefix_space=False)], "gpt-2"),
        ([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel()], "smollm"),
        ([pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}| ?[^\s]+"), "isolated"), pre_tokenizers.ByteLevel()], "qwen2"),
        ([pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{1,3}|\s"), "isolated"), pre_tokenizers.ByteLevel()], "llama-bpe"),
    ],
    ids=["GPT-2", "SmolLM", "Qwen", "Llama 3"],
)  # fmt: skip
def test_the_rule_by_which_texts_are_split_has_llama_cpps_name(parts, rule):
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)
    assert splitting_rule(json.loads(core.to_str())["pre_tokenizer"]) == rule


def test_what_cannot_be_written_is_refused_with_the_way_out(tmp_path):
    model = tiny.causal_lm()
    with pytest.raises(ConfigError, match="splits texts by Whitespace"):
        splitting_rule({"type": "Whitespace"})
    model.config.model_type = "gpt2"
    with pytest.raises(ConfigError, match=r"architectures llama, qwen2, qwen3, and this model is 'gpt2'"):
        write_gguf(model, tokenizer(), tmp_path / "model.gguf", kind="f32", name="tiny")
    model.config.model_type = "llama"
    model.config.rope_parameters = {"rope_type": "llama3", "rope_theta": 1.0}
    with pytest.raises(ConfigError, match="rope_type 'llama3'"):
        write_gguf(model, tokenizer(), tmp_path / "model.gguf", kind="f32", name="tiny")
    tokenizer().save_pretrained(tmp_path / "words")
    with pytest.raises(ConfigError, match="neither an adapter"):
        load_merged("tiny", tmp_path / "words")
    adapter_of(tiny.causal_lm(), tmp_path / "dora", use_dora=True)
    with pytest.raises(ConfigError, match="uses use_dora"):
        write_gguf_adapter(tmp_path / "dora", tiny.config(), tmp_path / "adapter.gguf")
