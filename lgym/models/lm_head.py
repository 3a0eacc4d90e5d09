"""The language-model head: logits, log-probabilities and entropies over the vocabulary."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lgym.functional.inputs import at_least_float32
from lgym.models.kernels.fused_logprobs import FusedLogNormalizers, FusedTokenLogprobs
from lgym.models.prefix_sharing.tree_attention import soft_cap


@dataclass(frozen=True)
class LMHead:
    """Output embeddings [V, H] of a causal model, and the soft cap of its logits, if it has one."""

    linear: Any
    softcap: float | None

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] to [..., V], at least fp32."""
        return at_least_float32(self.raw_logits(hidden))

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """[..., H] to [..., V], in the model's precision."""
        return soft_cap(self.linear(hidden), self.softcap)

    def chosen_logits(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """Logits of K tokens per state alone: [B, H] and [B, K] to [B, K], at least fp32."""
        if type(self.linear) is not nn.Linear:  # such as an adapter, which `weight` leaves out
            return self.logits(hidden).gather(1, token_ids)
        precise = torch.promote_types(hidden.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            logits = torch.einsum("bh,bkh->bk", hidden.to(precise), self.linear.weight[token_ids].to(precise))
        if self.linear.bias is not None:
            logits = logits + self.linear.bias[token_ids].to(precise)
        return soft_cap(logits, self.softcap)

    def log_normalizers(self, hidden: Tensor) -> Tensor:
        """Logsumexp of the logits over the vocabulary: [B, H] to [B], at least fp32."""
        if self._is_plain(hidden):
            return FusedLogNormalizers.apply(hidden, self.linear.weight)
        return self.logits(hidden).logsumexp(-1)

    def token_logprobs(
        self,
        hidden: Tensor,
        state_index: Tensor,
        tokens: Tensor,
        *,
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of tokens, each behind one of the states, and entropies of the states.

        Args:
            hidden: [K, H] hidden states.
            state_index: [n] int64, the state behind which each token stands.
            tokens: [n] int64.
            temperature: divisor of the logits.
            entropy_gradient: give entropies a gradient.

        Returns:
            [n] log-probabilities and [K] entropies in nats, at least fp32.
        """
        if self._is_plain(hidden):
            return FusedTokenLogprobs.apply(
                hidden, self.linear.weight, state_index, tokens, temperature, entropy_gradient
            )
        logits = self.logits(hidden)
        if temperature != 1:
            logits = logits / temperature
        logprobs = logits.log_softmax(-1)
        all_logprobs = logprobs if entropy_gradient else logprobs.detach()
        with torch.autocast(hidden.device.type, enabled=False):  # which would take the sum in half precision
            return logprobs[state_index, tokens], -torch.linalg.vecdot(all_logprobs.exp(), all_logprobs)

    def _is_plain(self, hidden: Tensor) -> bool:
        # logits are no more than hidden states times frozen weights
        return (
            type(self.linear) is nn.Linear
            and self.linear.bias is None
            and not self.linear.weight.requires_grad
            and self.softcap is None
            and not torch.is_autocast_enabled(hidden.device.type)
        )
