"""The value-head model: sharing, padding and precision must not change what it computes."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny
from lgym.models import LoraSettings
from lgym.models.kernels.float32 import Float32Linear

SEQUENCES = [
    (1, 2, 3, 4, 5, 6, 7, 20, 21),
    (1, 2, 3, 4, 5, 6, 7, 20, 22, 23),
    (1, 2, 3, 4, 5, 6, 30),
    (1, 2, 3, 4, 5, 6, 30, 31, 32, 33, 34),
]
PROMPTS = [8, 8, 7, 9]


def full_forward(llm, sequence):
    """Hidden states by the transformers model alone, one sequence, no cache, no mask."""
    return llm.causal_lm.base_model(input_ids=torch.tensor([sequence])).last_hidden_state[0]


@pytest.mark.parametrize("row_length", [4, 8, 64])
def test_packed_hidden_states_equal_one_full_forward_each(llm, row_length):
    """A wrong mask, position or prefix shows as a different hidden state."""
    states, index = llm.hidden_states(SEQUENCES, PROMPTS, row_length=row_length)
    for sequence, prompt, rows in zip(SEQUENCES, PROMPTS, index, strict=True):
        torch.testing.assert_close(
            states[rows], full_forward(llm, sequence)[prompt - 1 :], rtol=1e-6, atol=1e-6
        )


def test_gradients_equal_those_of_full_forwards(llm):
    """A prefix run without gradient would train the adapters on the tails alone."""
    weights = torch.linspace(-1, 1, 64, dtype=torch.float64)
    parameters = [p for n, p in llm.named_parameters() if "lora" in n]

    def gradients(total):
        return torch.autograd.grad(total, parameters)

    states, index = llm.hidden_states(SEQUENCES, PROMPTS, row_length=16)
    shared = gradients(sum((states[rows] * weights).sum() for rows in index))
    plain = gradients(
        sum((full_forward(llm, s)[p - 1 :] * weights).sum() for s, p in zip(SEQUENCES, PROMPTS, strict=True))
    )
    for ours, theirs in zip(shared, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_shared_prefix_is_computed_once(llm):
    """Counting tokens: prefix of 6, then the tails' tree 7 20 21 | 22 23 | 30 31 32 33 34."""
    llm.tokens_computed = 0
    llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
    assert llm.tokens_computed == 6 + 3 + 2 + 5


def test_a_prefix_is_kept_while_the_weights_are_fixed(llm):
    """6 tokens of prefix in the first call only, also for one sequence alone; another prefix replaces it."""
    alone, _ = llm.hidden_states(SEQUENCES[:1], PROMPTS[:1], row_length=64)
    with torch.no_grad(), llm.frozen_weights():
        llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
        llm.tokens_computed = 0
        states, _ = llm.hidden_states(SEQUENCES[:1], PROMPTS[:1], row_length=64)
        assert llm.tokens_computed == 9 - 6
        torch.testing.assert_close(states, alone, rtol=1e-6, atol=1e-6)
        others = [(9, *sequence) for sequence in SEQUENCES]
        for _ in range(2):
            states, index = llm.hidden_states(others, [p + 1 for p in PROMPTS], row_length=64)
            for sequence, prompt, rows in zip(others, PROMPTS, index, strict=True):
                torch.testing.assert_close(
                    states[rows], full_forward(llm, sequence)[prompt:], rtol=1e-6, atol=1e-6
                )


def test_a_kept_prefix_is_forgotten_when_weights_may_change(llm):
    """Yesterday's keys under today's weights would be a silent mistake; so would the adapters' under the
    reference."""
    with torch.no_grad(), llm.frozen_weights():
        adapted, _ = llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
        with llm.reference():
            reference, _ = llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
            expected = full_forward(llm, SEQUENCES[0])[PROMPTS[0] - 1 :]
        again, _ = llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
    torch.testing.assert_close(reference[: len(expected)], expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(again, adapted, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(reference, adapted)
    for parameter in llm.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1
    with torch.no_grad(), llm.frozen_weights():
        states, _ = llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
    torch.testing.assert_close(
        states[:2], full_forward(llm, SEQUENCES[0])[PROMPTS[0] - 1 :], rtol=1e-6, atol=1e-6
    )


def test_padding_token_and_side_do_not_matter(llm):
    """Nothing may attend to padding, whatever token it is: rows are padded by hand on either side of the
    batch."""
    alone, _ = llm.hidden_states(SEQUENCES[:1], PROMPTS[:1], row_length=64)
    for pad in (0, 99, 258):
        llm.tokenizer.pad_token_id = pad
        for side in ("left", "right"):
            llm.tokenizer.padding_side = side
            states, index = llm.hidden_states(SEQUENCES, PROMPTS, row_length=8)
            torch.testing.assert_close(states[index[0]], alone, rtol=1e-6, atol=1e-6)


def test_values_are_read_at_the_last_prompt_token(llm):
    """TWOSOME read position -1 under right padding: the value of a pad token."""
    states, index = llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
    values = llm.values(states[[rows[0] for rows in index]])
    for sequence, prompt, value in zip(SEQUENCES, PROMPTS, values, strict=True):
        expected = llm.value_head(full_forward(llm, sequence[:prompt])[-1])
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


def test_logits_are_the_models_own(llm):
    """Chosen logits minus the normalizer are log-probabilities over the whole vocabulary."""
    hidden = full_forward(llm, SEQUENCES[0])
    own = llm.causal_lm(input_ids=torch.tensor([SEQUENCES[0]])).logits[0].log_softmax(-1)
    tokens = torch.tensor([[3, 250]]).expand(len(hidden), 2)
    ours = llm.lm_head.chosen_logits(hidden, tokens) - llm.lm_head.log_normalizers(hidden)[:, None]
    torch.testing.assert_close(ours, own[:, [3, 250]], rtol=1e-6, atol=1e-6)


def test_an_adapter_of_the_output_layer_counts():
    """Chosen logits were those of the base's weight, and their normalizer the adapter's."""
    llm = tiny.llm(torch.float64, LoraSettings(r=2, target_modules=["q_proj", "lm_head"], last_blocks=None))
    hidden = full_forward(llm, SEQUENCES[0])
    own = llm.causal_lm(input_ids=torch.tensor([SEQUENCES[0]])).logits[0]
    tokens = torch.tensor([[3, 250]]).expand(len(hidden), 2)
    torch.testing.assert_close(llm.lm_head.chosen_logits(hidden, tokens), own[:, [3, 250]])
    with llm.reference():
        base = llm.causal_lm.get_output_embeddings()(hidden)
    assert (own - base).abs().max() > 0.1


def test_reference_is_the_model_without_adapters(llm):
    """The frozen reference must be the base model, and the adapters must be back afterwards."""
    base = tiny.causal_lm(torch.float64)
    with llm.reference():
        inside = full_forward(llm, SEQUENCES[0])
    expected = base.model(input_ids=torch.tensor([SEQUENCES[0]])).last_hidden_state[0]
    torch.testing.assert_close(inside, expected, rtol=1e-6, atol=1e-6)
    assert (full_forward(llm, SEQUENCES[0]) - expected).abs().max() > 1e-3


def test_a_precision_plugin_cannot_round_what_is_trained():
    """Lightning's bf16-true calls module.to(bfloat16): adapters, value head and rotary frequencies must
    stay."""
    llm = tiny.llm(dtype=torch.bfloat16)
    before = {name: t.clone() for name, t in [*llm.named_parameters(), *llm.named_buffers()]}
    llm.to(torch.float16)
    for name, tensor in [*llm.named_parameters(), *llm.named_buffers()]:
        assert tensor.dtype == before[name].dtype, name
        assert torch.equal(tensor, before[name]), name
    assert llm.value_head.hidden.weight.dtype == torch.float32
    adapters = [m for m in llm.modules() if isinstance(m, Float32Linear)]
    assert adapters
    assert all(m.weight.dtype == torch.float32 and m.weight.requires_grad for m in adapters)


def test_half_precision_adapters_get_fp32_gradients():
    """An adapter cast to bf16 for good would lose small steps."""
    llm = tiny.llm(dtype=torch.bfloat16)
    states, _ = llm.hidden_states(SEQUENCES, PROMPTS, row_length=64)
    assert states.dtype == torch.bfloat16
    llm.values(states).sum().backward()
    gradients = [p.grad for p in llm.parameters() if p.requires_grad]
    assert all(g is not None and g.dtype == torch.float32 for g in gradients)


def test_value_head_starts_at_zero():
    """Noise in the first values would be noise in the first advantages."""
    from lgym.models.value_head import ValueHead

    assert ValueHead(8, 4)(torch.randn(5, 8)).tolist() == [0.0] * 5


def test_full_fine_tuning_has_no_reference():
    """With every weight trained there is nothing to switch off: say so instead of comparing a model with
    itself."""
    from lgym.models import LLMConfig
    from lgym.models.build import assemble_llm
    from lgym.models.registry import DEFAULT

    whole = assemble_llm(tiny.causal_lm(), tiny.tokenizer(), LLMConfig(model="tiny", lora=None), DEFAULT)
    assert all(p.requires_grad for p in whole.parameters())
    with pytest.raises(ValueError, match="needs adapters"), whole.reference():
        pass


def test_unknown_adapter_targets_name_what_there_is():
    """peft's own error does not say which layers there are."""
    with pytest.raises(ValueError, match=r"no_such_layer.*q_proj"):
        tiny.llm(lora=LoraSettings(r=2, target_modules=["no_such_layer"]))
