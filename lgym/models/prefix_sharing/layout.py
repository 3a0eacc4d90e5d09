"""Choice of the layout of a model's forward passes: by trying them, not by the name of the architecture."""

import warnings
from typing import get_args

import torch
from torch import Tensor, nn

from lgym.models.kernels.int8_linear import Int8Linear
from lgym.models.llm import Layout, ValueHeadLLM
from lgym.models.prefix_sharing.frozen_blocks import find_frozen_blocks
from lgym.models.prefix_sharing.tree_attention import switch_tree_attention
from lgym.types import ConfigError

# Two sequences with a prompt of 6 tokens in common, on which layouts are compared.
PROBE_PROMPT = 6
PROBES = ((3, 4, 5, 6, 7, 8, 9, 10), (3, 4, 5, 6, 7, 8, 12, 13))

# Differences in nats that rounding in another order may cause. Accelerators may multiply fp32 with fewer
# digits (TF32).
TOLERANCES = {torch.bfloat16: 0.5, torch.float16: 0.1}
CPU_TOLERANCE = 1e-3
ACCELERATOR_TOLERANCE = 0.05


@torch.no_grad()
def select_layout(llm: ValueHeadLLM, hidden_cache_bytes: int = 0) -> None:
    """Selects the first of the layouts `tree`, `prefix_cache` and `padded` that agrees with the model's own
    forward, and frozen blocks once a run where `tree` agrees with them too, and they with themselves in any
    batch.

    `padded` is for models without a KV cache, with masks of their own, or that count positions themselves; it
    comes with a warning.

    Args:
        llm: the model, with its adapters.
        hidden_cache_bytes: the most to keep of what comes out of frozen blocks; 0 keeps nothing.

    Raises:
        ValueError: if `padded` differs too, so that the model scales its logits in a way of its own, or
            fails.
    """
    logits = [llm.causal_lm(input_ids=torch.tensor([probe], device=llm.device)).logits for probe in PROBES]
    expected = [probe[0, PROBE_PROMPT - 1 :].float().log_softmax(-1)[:, :20] for probe in logits]
    tolerance = _tolerance(llm)
    # a convolution would mix neighbors in a row
    convolves = any(isinstance(module, nn.Conv1d) for module in llm.causal_lm.modules())
    for layout in get_args(Layout)[-1:] if convolves else get_args(Layout):
        llm.layout = layout
        difference, error = _largest_difference(llm, expected)
        if difference <= tolerance:
            break
    else:
        reason = (
            f"log-probabilities computed by lgym differ from the model's own by {difference:.2g}: it scales "
            "its logits in a way of its own"
            if error is None
            else f"lgym cannot run it ({type(error).__name__}: {error})"
        )
        model_type = llm.causal_lm.config.model_type
        raise ConfigError(f"{llm.name} ({model_type}): {reason}; please report it.") from error
    if llm.layout == "tree" and llm.use_cache and hidden_cache_bytes:
        blocks = llm.frozen_blocks = find_frozen_blocks(llm.causal_lm, hidden_cache_bytes)
        if blocks is not None and (
            _largest_difference(llm, expected)[0] > tolerance or blocks.depends_on_batch()
        ):
            llm.frozen_blocks = None
    if llm.layout == "padded":
        warnings.warn(
            f"{llm.name} ({llm.causal_lm.config.model_type}) does not take shared prefixes, so every "
            "sequence is run whole: the same results, more slowly.",
            stacklevel=2,
        )


def _tolerance(llm: ValueHeadLLM) -> float:
    in_int8 = any(isinstance(module, Int8Linear) for module in llm.modules())
    if in_int8 or getattr(llm.causal_lm, "is_quantized", False):  # multiplied in 8 bits or bf16
        return TOLERANCES[torch.bfloat16]
    wide = CPU_TOLERANCE if llm.device.type == "cpu" else ACCELERATOR_TOLERANCE
    return TOLERANCES.get(llm.causal_lm.get_input_embeddings().weight.dtype, wide)


def _largest_difference(llm: ValueHeadLLM, expected: list[Tensor]) -> tuple[float, Exception | None]:
    """In nats; infinite, and the error beside it, where the model does not take the layout."""
    try:
        switch_tree_attention(llm.causal_lm, on=llm.layout == "tree")
        states, index = llm.hidden_states(PROBES, [PROBE_PROMPT] * len(PROBES), row_length=64)
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        return float("inf"), error
    targets = torch.arange(20, device=llm.device).expand(len(states), -1)
    logprobs = llm.lm_head.chosen_logits(states, targets) - llm.lm_head.log_normalizers(states)[:, None]
    differences = (logprobs[rows] - probe for rows, probe in zip(index, expected, strict=True))
    return max(float(difference.abs().max()) for difference in differences), None
