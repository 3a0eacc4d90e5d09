"""The value head: V(s) from the hidden state at the last token of the prompt, before the agent acts."""

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """A two-layer perceptron in fp32, H -> hidden -> 1, with its output starting at exactly 0.

    Starting at 0 makes the first advantages plain returns instead of returns minus noise.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, dtype=torch.float32)
        self.hidden = nn.Linear(hidden_size, width, dtype=torch.float32)
        self.output = nn.Linear(width, 1, dtype=torch.float32)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., H] hidden states of any precision to [...] values in the head's own (fp32)."""
        with torch.autocast(hidden_states.device.type, enabled=False):
            x = self.norm(hidden_states.to(self.norm.weight.dtype))
            return self.output(torch.tanh(self.hidden(x))).squeeze(-1)
