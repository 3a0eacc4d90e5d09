"""The text-generating policy: the language model answers in free text, and the agent reads an action from it.

pi(response | prompt) = product over its tokens of  softmax(logits / temperature)[token]

By default no token is cut off, so responses are sampled from the very distribution that the loss trains. With
`top_k` or `top_p` the recorded log-probabilities are those of the remaining tokens, and the loss sees a
policy that differs from the behavior policy from the first step on.
"""

from lgym.batch import PolicyOutput, ResponseBatch
from lgym.models.llm import ValueHeadLLM
from lgym.plain_text import SpecialTokenEscaper
from lgym.policies.text_generation import TextPolicy, token_output
from lgym.rollout import Prompt, Response


class GenerationPolicy(TextPolicy):
    """Free text, token by token."""

    scores_candidates = False

    def bind(self, llm: ValueHeadLLM) -> None:
        super().bind(llm)
        self._escaper = SpecialTokenEscaper(llm.tokenizer)

    def demonstrated(self, prompt: Prompt, text: str, token_ids: tuple[int, ...], choice: int) -> Response:
        """The text and the token that ends a turn, or the tokens that were sampled."""
        if not token_ids:
            plain = self._escaper
            token_ids = (*plain.encode(plain.escape(text, plain.markup_ids)), self.llm.tokenizer.eos_token_id)
        return Response(token_ids, (0.0,) * len(token_ids), True, text)

    def _evaluate_distinct(self, batch: ResponseBatch, *, entropy_gradient: bool) -> PolicyOutput:
        prompts = [batch.prompts[row].token_ids for row in batch.prompt_index.tolist()]
        sequences = [
            prompt + response[:-1] for prompt, response in zip(prompts, batch.response_ids, strict=True)
        ]
        lengths = [len(prompt) for prompt in prompts]
        states, positions = self.llm.hidden_states(sequences, lengths, row_length=self.row_length)
        return token_output(
            self, batch, states, positions, sampled=batch.action_mask, entropy_gradient=entropy_gradient
        )
