"""A choice between candidate texts by a head of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lgym.batch import pad_rows
from lgym.functional import candidate_logprobs
from lgym.models.action_value_head import text_embeddings
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.packing import TokenIds
from lgym.policies.choice import Choice
from lgym.rollout import Prompt


@dataclass(frozen=True)
class HeadChoice(Choice):
    """The distribution over the candidates of a prompt by the scores of `llm.action_head`.

    softmax over c of  score(s, c) / temperature

    No candidate is run through the model, however long.
    """

    def sequences(self, prompts: Sequence[Prompt]) -> list[list[TokenIds]]:
        return [[()] for _ in prompts]

    def logprobs(
        self,
        llm: ValueHeadLLM,
        prompts: Sequence[Prompt],
        states: Tensor,
        places: Sequence[Sequence[Sequence[int]]],
    ) -> Tensor:
        assert llm.action_head is not None
        ends = torch.tensor([rows[0][0] for rows in places], device=states.device)
        embed = llm.causal_lm.get_input_embeddings()
        embeddings = text_embeddings(embed, [prompt.candidate_ids for prompt in prompts])
        mask = pad_rows([[1] * len(prompt.candidates) for prompt in prompts]).bool().to(states.device)
        scores = llm.action_head.scores(states[ends], embeddings)
        return candidate_logprobs(scores, mask.to(scores.dtype), mask, temperature=self.temperature)
