"""Changes that nothing can notice, so that `scripts/mutate.py` reports them apart: file, line as it is,
change, and why.

Only what gives the same results for all inputs belongs here, not what is hard to test.
"""

ZERO = "it is multiplied by a probability or a weight of 0"
PROMOTED = "only shape and dtype of the sum are read"
EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    (
        "lgym/functional/group_advantages.py",
        "pairs = groups.unique(return_inverse=True)[1] * len(distinct_states) + state_index",
        "groups.unique(return_inverse=True)[1] * len(distinct_states) + state_index"
        " -> groups.unique(return_inverse=True)[1] * len(distinct_states) - state_index",
        "pairs get other numbers, and each its own as before",
    ),
    (
        "lgym/functional/group_advantages.py",
        "lowest = returns.new_zeros(len(sizes)).scatter_reduce("
        '0, group_index, returns, "amin", include_self=False)',
        "\"amin\" -> 'amax'",
        "deviations do not depend on which of a group's returns distances are taken from",
    ),
    (
        "lgym/functional/kl.py",
        "log_ratio = (p_logprobs - q_logprobs).masked_fill(p_logprobs.isneginf(), 0.0)",
        "0.0 -> 1.0",
        ZERO,
    ),
    (
        "lgym/functional/kl.py",
        "return -(logprobs.exp() * logprobs.masked_fill(logprobs.isneginf(), 0.0)).sum(-1)",
        "0.0 -> 1.0",
        ZERO,
    ),
    (
        "lgym/functional/masking.py",
        "return (x.masked_fill(weights == 0, 0.0) * weights).sum(dim) / total.masked_fill(total == 0, 1.0)",
        "0.0 -> 1.0",
        ZERO,
    ),
    ("lgym/functional/masking.py", "return x", "x -> x * 2", "it has no entries"),
    (
        "lgym/functional/masking.py",
        "first_counted = counted.flatten().to(x.dtype).argmax(dim=0, keepdim=True)",
        "True -> False",
        "one number is gathered either way",
    ),
    (
        "lgym/functional/returns.py",
        "returns = torch.zeros_like(rewards + next_values)",
        "rewards + next_values -> rewards - next_values",
        PROMOTED,
    ),
    (
        "lgym/functional/truncation.py",
        "if 0 < top_k < logits.shape[-1]:",
        "0 < top_k < logits.shape[-1] -> 0 < top_k <= logits.shape[-1]",
        "the likeliest of all tokens are all of them",
    ),
)
