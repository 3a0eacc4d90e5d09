"""Attention over trees: equal to what every model computes by itself, whatever its attention has of its
own."""

from __future__ import annotations

import pytest
import torch
import transformers

from helpers import tiny
from lgym.models import LLMConfig, LoraSettings
from lgym.models.build import assemble_llm
from lgym.models.prefix_sharing import buckets
from lgym.models.prefix_sharing.buckets import _attend_eager, _attend_fused, make_attn_bias, score_limit
from lgym.models.registry import DEFAULT

SEQUENCES = [
    (1, 2, 3, 4, 5, 6, 7, 20, 21),
    (1, 2, 3, 4, 5, 6, 7, 20, 22, 23),
    (1, 2, 3, 4, 5, 6, 30),
    (1, 2, 3, 4, 5, 9),
]
PROMPTS = [8, 8, 7, 6]
SIZES = {"vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES = {
    "gemma2": (
        transformers.Gemma2Config,
        {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64},
        "tree",
    ),
    "qwen3": (
        transformers.Qwen3Config,
        {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64},
        "tree",
    ),
    "gpt_neox": (transformers.GPTNeoXConfig, {"intermediate_size": 64}, "tree"),
    "gpt2": (transformers.GPT2Config, {}, "tree"),
    "stablelm": (
        transformers.StableLmConfig,
        {"num_key_value_heads": 4, "intermediate_size": 64},
        "prefix_cache",
    ),
    "gpt_oss": (
        transformers.GptOssConfig,
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 32,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
        "prefix_cache",
    ),
}


def model_of(family):
    """A tiny random model; weights large enough that positions and masks matter."""
    make, settings, layout = FAMILIES[family]
    config = make(**SIZES, **settings, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.to(
        torch.float32 if family == "gpt_oss" else torch.float64
    ).eval(), layout  # its experts know no float64


def wrapped(model, last_blocks=None):
    settings = LLMConfig(
        model="tiny", lora=LoraSettings(r=2, target_modules="all-linear", last_blocks=last_blocks)
    )
    return assemble_llm(model, tiny.tokenizer(), settings, DEFAULT)


@pytest.mark.parametrize("last_blocks", [None, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_its_own_hidden_states(family, last_blocks):
    """Soft caps, windows, partial rotation, learned positions: what a family has of its own must come
    through, also above frozen blocks that are computed once a run."""
    model, layout = model_of(family)
    llm = wrapped(model, last_blocks)
    assert llm.layout == layout
    assert (llm.frozen_blocks is not None) is (layout == "tree" and last_blocks == 1)
    states, index = llm.hidden_states(SEQUENCES, PROMPTS, row_length=12)
    for sequence, prompt, rows in zip(SEQUENCES, PROMPTS, index, strict=True):
        own = llm.causal_lm.base_model(input_ids=torch.tensor([sequence])).last_hidden_state[0, prompt - 1 :]
        torch.testing.assert_close(states[rows], own, rtol=1e-5, atol=1e-5)


def gradients(llm, layout, row_length):
    """Of a sum over all states, by parameter; adapters are not zero."""
    llm.layout = layout
    llm.zero_grad()
    states, index = llm.hidden_states(SEQUENCES, PROMPTS, row_length=row_length)
    sum((k + 1) * states[rows].cos().sum() for k, rows in enumerate(index)).backward()
    return [p.grad.clone() for name, p in llm.named_parameters() if "lora" in name]


@pytest.mark.parametrize("row_length", [5, 12])
def test_all_layouts_have_the_same_gradients(row_length):
    """A prefix without gradient, or with that of one row of several, or padding that leaks into keys, shows
    here."""
    llm = tiny.llm(dtype=torch.float64)
    assert llm.layout == "tree"
    whole = gradients(llm, "padded", row_length)
    assert max(float(g.abs().max()) for g in whole) > 1e-3
    for layout in ("tree", "prefix_cache"):
        for ours, plain in zip(gradients(llm, layout, row_length), whole, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-3, atol=2e-5)  # transformers attends in fp32


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_the_fused_kernel_equals_the_written_out_one(kv_heads):
    """What GPUs run, on the CPU: outputs and gradients, grouped heads included."""
    q = torch.randn(kv_heads, 3, 4, 6 // kv_heads, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(kv_heads, 3, 7, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    attn_mask = torch.rand(3, 1, 4, 7) < 0.6
    attn_mask[..., 0] = True
    biases = [make_attn_bias(attn_mask, copies, 6 // kv_heads, torch.float64) for copies in (kv_heads, 1)]
    ours = _attend_eager(q, k, v, biases[0], 0.3, None)
    fused = _attend_fused(q, k, v, biases[1], 0.3)
    torch.testing.assert_close(ours, fused)
    weights = torch.randn_like(ours)
    for mine, theirs in zip(
        torch.autograd.grad((ours * weights).sum(), (q, k, v)),
        torch.autograd.grad((fused * weights).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_fused_kernel_stores_no_scores(monkeypatch):
    """CUDA's take a mask only where queries and keys have as many heads, or torch writes the scores out; and a
    bias for each head was made that nothing read. Gradients are those of the attention that a CPU takes."""
    llm = tiny.llm(dtype=torch.float64)
    expected = gradients(llm, "tree", 12)
    kernel, heads, copies = buckets.scaled_dot_product_attention, [], []

    def fused(q, k, v, **options):
        heads.append((q.shape[1], k.shape[1]))
        return kernel(q, k, v, **options)

    def counted(attn_mask, *shape):
        attn_bias = make_attn_bias(attn_mask, *shape)
        copies.append(len(attn_bias) // len(attn_mask))
        return attn_bias

    monkeypatch.setattr(buckets, "is_fused", lambda device, softcap: True)
    monkeypatch.setattr(buckets, "scaled_dot_product_attention", fused)
    monkeypatch.setattr(buckets, "make_attn_bias", counted)
    for ours, plain in zip(gradients(llm, "tree", 12), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-9)
    assert set(heads) == {(2, 2)}
    assert set(copies) == {1}


def test_scores_with_a_soft_cap_are_bounded_on_a_gpu_too():
    """No fused kernel caps them, so they are stored."""
    cuda, cpu, capped = torch.device("cuda"), torch.device("cpu"), transformers.Gemma2Config()
    limits = [score_limit(*case) for case in ((cuda, capped), (cuda, tiny.config()), (cpu, capped))]
    assert limits == [1 << 21, 1 << 26, 1 << 21]


def test_calls_without_a_tree_go_the_models_own_way():
    """Whoever takes the trained model out of lgym, to generate with it, must find it as it was."""
    llm, plain = tiny.llm(), tiny.causal_lm()
    ids, mask = (
        torch.tensor([[0, 0, 5, 6, 7], [5, 6, 7, 8, 9]]),
        torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]),
    )
    with llm.reference():
        ours = llm.causal_lm.generate(input_ids=ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
        torch.testing.assert_close(
            llm.causal_lm(ids, attention_mask=mask).logits[1], plain(ids, attention_mask=mask).logits[1]
        )
    theirs = plain.generate(input_ids=ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    assert ours.tolist() == theirs.tolist()
