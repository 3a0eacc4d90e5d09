"""Frozen blocks once a run: the same results, bit for bit whatever was computed before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from helpers import tiny
from lgym.models import LLMConfig, LoraSettings
from lgym.models.build import assemble_llm
from lgym.models.prefix_sharing.frozen_blocks import FrozenBlocks, find_frozen_blocks
from lgym.models.prefix_sharing.state_tree import MISSING, StateTree
from lgym.models.registry import DEFAULT

BLOCKS, LAST = 4, 2


def prompts(count=24, seed=0):
    """Prompts with a beginning in common, shorter and longer than a block of positions."""
    draw = random.Random(seed)
    common = tuple(draw.randrange(250) for _ in range(20))
    return [
        common + tuple(draw.randrange(3) for _ in range(draw.choice([1, 4, 11, 13, 40])))
        for _ in range(count)
    ]


def model(dtype=torch.float32, max_mb=16, **lora):
    settings = LLMConfig(
        model="tiny", lora=LoraSettings(r=4, **{"last_blocks": LAST, **lora}), hidden_cache_mb=max_mb
    )
    llm = assemble_llm(tiny.causal_lm(dtype, num_hidden_layers=BLOCKS), tiny.tokenizer(), settings, DEFAULT)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in llm.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
    return llm


def ends(llm, batch):
    """Hidden states at the ends of prompts."""
    states, index = llm.hidden_states(batch, list(map(len, batch)), row_length=16)
    return states[[rows[0] for rows in index]]


def below(llm, batches, max_bytes=1 << 20):
    """What comes out of the frozen blocks, by prompt, where batches come one after the other."""
    blocks = find_frozen_blocks(llm.causal_lm, max_bytes)
    found = {}
    for batch in batches:
        prefix, packed = llm.pack_sequences(batch, list(map(len, batch)), row_length=16)
        states = blocks.states(prefix, packed)
        for prompt, index in zip(batch, packed.token_index, strict=True):
            found[prompt] = torch.cat([states[: len(prefix)], states[[len(prefix) + i for i in index]]])
    return found, blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_comes_out_is_the_same_in_any_batch(dtype):
    """Alone, with others, in another order, after what was kept had to go: bit for bit. A resumed run starts
    with nothing kept, and must go on as the one that was not interrupted."""
    llm = model(dtype)
    batch = prompts()
    expected, whole = below(llm, [batch])
    shuffled = random.Random(1).sample(batch, len(batch))
    few = 64 * dtype.itemsize * 60  # vectors of 60 tokens
    for batches, max_bytes in (
        ([[prompt] for prompt in batch], 1 << 20),
        ([shuffled[i : i + 5] for i in range(0, len(batch), 5)], 1 << 20),
        ([shuffled[i : i + 5] for i in range(0, len(batch), 5)] * 2, few),
        ([batch, batch], 0),
    ):
        found, blocks = below(llm, batches, max_bytes)
        assert all(torch.equal(found[prompt], expected[prompt]) for prompt in batch)
        assert len(blocks._tree) * 64 * dtype.itemsize <= max_bytes
        assert blocks.tokens_computed >= whole.tokens_computed


def test_what_is_kept_is_not_computed_again():
    llm = model()
    blocks = llm.frozen_blocks
    batch = prompts()
    ends(llm, batch)
    computed = blocks.tokens_computed
    ends(llm, batch)
    with llm.frozen_weights(), torch.no_grad():
        ends(llm, batch[:5])
    assert blocks.tokens_computed == computed
    ends(llm, [(*batch[0], 7)])
    assert computed < blocks.tokens_computed <= computed + len(batch[0]) + 16


@pytest.mark.parametrize("session", [False, True])
def test_hidden_states_and_gradients_are_those_of_the_whole_model(session):
    """In playing (with fixed weights, where the common prefix has a cache of its own) and in learning."""
    plain, llm = model(torch.float64, max_mb=0), model(torch.float64)
    assert plain.frozen_blocks is None
    assert llm.frozen_blocks is not None
    batch = prompts()
    if session:
        with torch.no_grad(), llm.frozen_weights(), plain.frozen_weights():
            for part in (batch[:10], batch[10:], batch):
                torch.testing.assert_close(ends(llm, part), ends(plain, part), rtol=1e-5, atol=1e-5)
            with llm.reference(), plain.reference():
                torch.testing.assert_close(ends(llm, batch), ends(plain, batch), rtol=1e-5, atol=1e-5)
        return
    gradients = []
    for one in (plain, llm):
        ends(one, batch).cos().sum().backward()
        gradients.append({n: p.grad for n, p in one.named_parameters() if "lora" in n})
    assert len(gradients[0]) == 2 * 7 * LAST
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("llm", "reason"),
    [
        pytest.param(lambda: model(last_blocks=None), "adapters in every block", id="all-blocks"),
        pytest.param(lambda: model(max_mb=0), "no memory for it", id="no-memory"),
        pytest.param(
            lambda: model(target_modules=["q_proj", "embed_tokens"], last_blocks=None),
            "adapters on the embeddings",
            id="embeddings",
        ),
    ],
)
def test_models_without_constant_blocks(llm, reason):
    assert llm().frozen_blocks is None, reason


def test_blocks_that_depend_on_the_batch_are_not_kept(monkeypatch):
    """Catches a resumed run that ends elsewhere, on a CPU that sums a product of this shape in another order
    when it has more rows. All else agrees: the difference is that of rounding."""
    forward = LlamaDecoderLayer.forward

    def in_another_order(self, hidden_states, *args, **kwargs):
        return forward(self, hidden_states, *args, **kwargs) * (1 + 1e-6 * (hidden_states.shape[1] > 64))

    assert model().frozen_blocks is not None
    monkeypatch.setattr(LlamaDecoderLayer, "forward", in_another_order)
    llm = model()
    assert (llm.layout, llm.frozen_blocks) == ("tree", None)


def test_full_training_keeps_nothing():
    llm = assemble_llm(tiny.causal_lm(), tiny.tokenizer(), LLMConfig(model="tiny", lora=None), DEFAULT)
    assert llm.frozen_blocks is None


def test_the_model_is_left_as_it_was():
    """Blocks are replaced for a pass only, also where it fails."""
    llm = model()
    blocks: FrozenBlocks = llm.frozen_blocks
    token_ids = torch.tensor([prompts()[0]])
    before = llm.causal_lm(input_ids=token_ids).logits
    with pytest.raises(RuntimeError, match="in between"), blocks.skipped(torch.zeros(3, 64)):
        raise RuntimeError("in between")
    ends(llm, prompts())
    assert torch.equal(llm.causal_lm(input_ids=token_ids).logits, before)
    assert not any("forward" in vars(block) for block in blocks._blocks)


def test_precisions_are_kept_apart():
    """Under autocast other numbers come out."""
    llm = model()
    batch = prompts()
    with torch.no_grad():
        wide = ends(llm, batch)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = ends(llm, batch)
        assert torch.equal(ends(llm, batch), wide)
        fresh = model()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(narrow, ends(fresh, batch))
    assert not torch.equal(narrow, wide)


def chain(*token_ids):
    return [(number - 1, token) for number, token in enumerate(token_ids)]


def vectors(first, count):
    return torch.arange(first, first + count, dtype=torch.float32)[:, None].expand(-1, 4)


def test_the_tree_forgets_what_was_used_least_recently():
    tree = StateTree(max_bytes=6 * 16)
    tree.add(chain(1, 2, 3), "root", np.arange(3), vectors(0, 3))
    tree.add(chain(1, 5, 6), "root", np.array([1, 2]), vectors(10, 2))
    assert tree.find(chain(1, 2, 3), "root").tolist() == [0, 1, 2]  # now 5 and 6 are the oldest
    tree.add(chain(1, 7, 8), "root", np.array([1, 2]), vectors(20, 2))
    nodes = tree.find(chain(1, 2, 3), "root")
    assert tree.states(nodes)[:, 0].tolist() == [0, 1, 2]
    assert tree.find(chain(1, 5, 6), "root")[1:].tolist() == [MISSING, MISSING]
    nodes = tree.find(chain(1, 7, 8), "root")
    assert tree.states(nodes)[:, 0].tolist() == [0, 20, 21]
    assert tree.find(chain(1, 2), "another root").tolist() == [MISSING, MISSING]
    assert len(tree) <= 6


def test_a_tree_keeps_what_there_is_room_for():
    """A batch larger than the tree: its beginning, which later batches share most."""
    tree = StateTree(max_bytes=4 * 16)
    tree.add(chain(*range(9)), "root", np.arange(9), vectors(0, 9))
    nodes = tree.find(chain(*range(9)), "root")
    assert nodes.tolist() == [0, 1, 2, 3] + [MISSING] * 5
    assert tree.states(nodes[:4])[:, 0].tolist() == [0, 1, 2, 3]
