"""The action-value head: twin Q(s, c) from the hidden state at the end of the prompt and the candidate's
tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lgym.models.value_head import ValueHead

TWINS = 2


class ActionValueHead(ValueHead):
    """Two estimates of Q(s, c), each a product of features of the state and of the candidate.

    Q_i(s, c) = mean + std * output_i(tanh(W_i x(s)) * tanh(U_i e(c)))

    with x, mean and std of `ValueHead`. e(c) is the mean of the embeddings of the candidate's tokens, so that
    no candidate is run through the model (cf. DRRN, He et al. 2016, arXiv:1511.04636, section 3). What one
    estimate gets wrong by chance the other seldom does (Fujimoto et al. 2018, arXiv:1802.09477, section 4).
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__(hidden_size, width)
        self.width = width
        self.hidden = nn.Linear(hidden_size, TWINS * width, dtype=torch.float32)
        self.action_norm = nn.LayerNorm(hidden_size, elementwise_affine=False)
        self.action = nn.Linear(hidden_size, TWINS * width, dtype=torch.float32)
        self.output = nn.Linear(width, TWINS, dtype=torch.float32)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    @classmethod
    def beside(cls, head: ValueHead | None) -> Any:
        """A new head of the width and on the device of a value head, which must be there."""
        assert head is not None
        return cls(head.hidden.in_features, head.hidden.out_features).to(head.hidden.weight.device)

    def action_values(self, hidden_states: Tensor, embeddings: Tensor) -> Tensor:
        """Values of candidates.

        Args:
            hidden_states: [U, H] at the ends of prompts, of any precision.
            embeddings: [U, C, H] of candidates, likewise.

        Returns:
            [U, C, 2] in rewards, in the head's own precision (fp32).
        """
        return self.mean + self.std * self.products(hidden_states, embeddings)

    def products(self, hidden_states: Tensor, embeddings: Tensor) -> Tensor:
        """`action_values` in standard deviations of returns from their mean."""
        with torch.autocast(hidden_states.device.type, enabled=False):
            state = torch.tanh(self.hidden(self.features(hidden_states)))[:, None]
            action = torch.tanh(self.action(self.action_norm(embeddings.to(self.action.weight.dtype))))
            features = (state * action).unflatten(-1, (TWINS, self.width))
            return (features * self.output.weight).sum(-1) + self.output.bias


class ActionHead(ActionValueHead):
    """Scores of candidates to choose by, in place of the likelihood of their words: the means of twin
    products, which returns do not scale."""

    def scores(self, hidden_states: Tensor, embeddings: Tensor) -> Tensor:
        """[U, C] scores in nats, all 0 at first; arguments of `action_values`."""
        return self.products(hidden_states, embeddings).mean(-1)

    def update_statistics(self, returns: Tensor) -> None:
        """Counts the rollout."""
        self.updates.add_(1)

    def preserve_values(self, old_mean: float, old_std: float) -> None:
        """Does nothing: scores are no returns."""


@torch.no_grad()
def text_embeddings(embed: nn.Embedding, texts: Sequence[Sequence[tuple[int, ...]]]) -> Tensor:
    """[U, C, H] means of the embeddings of tokens, of U lists of texts, padded with zeros; in fp32, without
    gradient.

    Args:
        embed: the model's input embeddings.
        texts: token ids.
    """
    distinct = {ids: number for number, ids in enumerate({ids: None for own in texts for ids in own})}
    device = embed.weight.device
    rows = [embed(torch.tensor(ids, device=device)).to(torch.float32).mean(0) for ids in distinct]
    table = torch.stack([*rows, torch.zeros_like(rows[0])])
    numbers = [torch.tensor([distinct[ids] for ids in own]) for own in texts]
    return table[pad_sequence(numbers, batch_first=True, padding_value=len(rows)).to(device)]
