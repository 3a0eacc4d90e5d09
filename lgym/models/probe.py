"""Which layout of shared tokens a model can do: tried out, not looked up."""

from __future__ import annotations

import warnings
from contextlib import suppress

import torch
from torch import Tensor, nn

from lgym.models.llm import ValueHeadLLM
from lgym.models.tree_attention import restore_attention, use_tree_attention
from lgym.types import ConfigError

PROBE_PROMPT = 6
PROBES = ((3, 4, 5, 6, 7, 8, 9, 10), (3, 4, 5, 6, 7, 8, 12, 13))
"""Two sequences with a prompt in common, on which layouts are compared."""

LAYOUT_GAPS = {torch.bfloat16: 0.5, torch.float16: 0.1}
"""In nats: what rounding in another order may come to."""

LARGEST_LAYOUT_GAP, ACCELERATOR_GAP = 1e-3, 0.05
"""The same in wider precisions on a CPU; elsewhere, where fp32 may be multiplied with fewer digits (TF32)."""


@torch.no_grad()
def settle_layout(llm: ValueHeadLLM) -> None:
    """Takes the first layout that gives what the model's own forward pass gives, on a few tokens. The last, every
    sequence whole, is for models without a cache, with masks of their own, or which count positions themselves, and
    it says so.

    Raises:
        ValueError: if that differs too, so that this model scales its logits in a way of its own.
    """
    own = _own_logprobs(llm)
    limit = _largest_gap(llm)
    convolves = any(isinstance(module, nn.Conv1d) for module in llm.causal_lm.modules())
    if not convolves:  # a convolution reads its neighbours in the row, whoever they are
        with suppress(KeyError, ValueError):
            use_tree_attention(llm.causal_lm)
            llm.layout = "tree"
            if _layout_gap(llm, own) <= limit:
                return
        restore_attention(llm.causal_lm)
        llm.layout = "rows"
        if _layout_gap(llm, own) <= limit:
            return
    llm.layout = "whole"
    gap = _layout_gap(llm, own)
    kind = llm.causal_lm.config.model_type
    if gap > limit:
        raise ConfigError(
            f"{llm.name}: log-probabilities computed by lgym differ from the model's own by {gap:.2g}. Its "
            f"architecture ({kind}) scales its logits in a way of its own; please report it."
        )
    warnings.warn(
        f"{llm.name} ({kind}) does not take shared prefixes, so every sequence is run whole: the same results, more slowly.",
        stacklevel=2,
    )


def _largest_gap(llm: ValueHeadLLM) -> float:
    """By the coarsest precision that it computes in: quantized weights are multiplied in 8 bits or bf16."""
    if getattr(llm.causal_lm, "is_quantized", False):
        return LAYOUT_GAPS[torch.bfloat16]
    wide = LARGEST_LAYOUT_GAP if llm.device.type == "cpu" else ACCELERATOR_GAP
    return LAYOUT_GAPS.get(llm.causal_lm.get_input_embeddings().weight.dtype, wide)


def _own_logprobs(llm: ValueHeadLLM) -> list[Tensor]:
    """[3, 20] log-probabilities by the model's own forward pass, for each of the probes."""
    logits = [llm.causal_lm(input_ids=torch.tensor([probe], device=llm.device)).logits for probe in PROBES]
    return [own[0, PROBE_PROMPT - 1 :].float().log_softmax(-1)[:, :20] for own in logits]


def _layout_gap(llm: ValueHeadLLM, own: list[Tensor]) -> float:
    """Largest difference of log-probabilities from the model's own; infinite where ours fail."""
    try:
        states, index = llm.hidden_states(PROBES, [PROBE_PROMPT] * len(PROBES), row_length=64)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError):
        return float("inf")
    targets = torch.arange(20, device=llm.device).expand(len(states), -1)
    ours = llm.chosen_logits(states, targets) - llm.log_normalisers(states)[:, None]
    return max(float((ours[rows] - theirs).abs().max()) for rows, theirs in zip(index, own, strict=True))
