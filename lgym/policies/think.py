"""The think policy: the language model writes a bounded text, then one of the agent's candidates is chosen.

pi(text, c | prompt) = product over the text's tokens of  softmax(logits / temperature)[token]
                       * pi(c | prompt, text, answer prefix)

The answer prefix, such as a new line and "Answer: ", follows the text; nobody chose it, and it has no loss. A
token that ends the turn ends the text: it is sampled and learned, and the answer prefix takes its place,
since nobody answers behind the end of a turn. There the candidates have the distribution of
`CandidatePolicy`. No action can be invalid, and both the text and the choice are trained.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lgym.batch import PolicyOutput, ResponseBatch
from lgym.functional import categorical_entropy
from lgym.models.generation.decoding import GenerationOutput
from lgym.models.llm import ValueHeadLLM
from lgym.models.prefix_sharing.branches import build_token_trie, run_branches
from lgym.models.prefix_sharing.packing import TokenIds
from lgym.policies.choice import Choice, LengthNormalization
from lgym.policies.policy import Prompts
from lgym.policies.text_generation import TextPolicy, token_output
from lgym.rollout import Prompt, Response
from lgym.types import ConfigError


class ThinkPolicy(TextPolicy):
    """Free text, then a choice between candidates."""

    scores_candidates = True

    def __init__(
        self,
        max_reasoning_tokens: int = 32,
        answer_prefix: str = "\nAnswer: ",
        length_normalization: LengthNormalization = "none",
        constrained_decoding: bool = False,
        choice_temperature: float = 1.0,
        **kwargs: Any,
    ) -> None:
        """
        Args:
            max_reasoning_tokens: the longest text before the choice; what is longer is cut there.
            answer_prefix: the text between the reasoning and the candidates.
            length_normalization: of the candidates' log-likelihoods, as in CandidatePolicy.
            constrained_decoding: of the candidates, as in CandidatePolicy.
            choice_temperature: of the softmax over candidates; above 1 is closer to uniform.
            **kwargs: of the text, as in GenerationPolicy.
        """
        super().__init__(max_new_tokens=max_reasoning_tokens, **kwargs)
        if not answer_prefix:
            raise ConfigError(
                "answer_prefix is empty; it must have some text, such as a new line, for the choice to "
                "follow."
            )
        self.choice = Choice(length_normalization, choice_temperature, constrained_decoding)
        self.answer_prefix = answer_prefix

    def bind(self, llm: ValueHeadLLM) -> None:
        super().bind(llm)
        self.prefix_ids: TokenIds = tuple(
            llm.tokenizer(self.answer_prefix, add_special_tokens=False)["input_ids"]
        )
        self.max_new_tokens = self.max_text_tokens + len(self.prefix_ids)

    def demonstrated(self, prompt: Prompt, text: str, token_ids: tuple[int, ...], choice: int) -> Response:
        """The choice, behind the reasoning that was sampled, if any was."""
        appended = len(prompt.candidate_ids[choice]) + len(self.prefix_ids)
        reasoning = token_ids[: len(token_ids) - appended] if token_ids else ()
        return self._decided(prompt, Response(reasoning, (0.0,) * len(reasoning), True), choice, 0.0)

    def _responses(
        self,
        prompts: Prompts,
        output: GenerationOutput,
        texts: Sequence[Response],
        generator: torch.Generator | None,
    ) -> list[Response]:
        answered = list(zip(prompts, output.response_index, strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(answered))}
        distinct = list(numbers)
        rows: list[Tensor] = []
        for start in range(0, len(distinct), self.responses_per_forward):
            rows += self._score(distinct[start : start + self.responses_per_forward], output)
        padded = pad_sequence(rows, batch_first=True, padding_value=-torch.inf)
        logprobs = padded[[numbers[pair] for pair in answered]]
        choices = sample(logprobs, generator).tolist()
        return [
            self._decided(prompt, texts[row], choice, float(distribution[choice]))
            for (prompt, row), choice, distribution in zip(answered, choices, logprobs, strict=True)
        ]

    def _evaluate_distinct(self, batch: ResponseBatch, *, entropy_gradient: bool) -> PolicyOutput:
        """The text's tokens, and the choice at its candidate's first token."""
        prompts = [batch.prompts[row] for row in batch.prompt_index.tolist()]
        # the last decision is the choice
        choice_positions = [int(mask.nonzero().max()) for mask in batch.action_mask]
        reasonings = [
            response[: position - len(self.prefix_ids)]
            for response, position in zip(batch.response_ids, choice_positions, strict=True)
        ]
        bodies = [
            p.token_ids + self._without_stop(r) + self.prefix_ids
            for p, r in zip(prompts, reasonings, strict=True)
        ]
        lengths = [len(prompt.token_ids) for prompt in prompts]
        states, rows = self._run_continuations(bodies, lengths, self.choice.sequences(prompts))
        chosen = torch.zeros_like(batch.action_mask)
        chosen[torch.arange(len(batch)), torch.tensor(choice_positions, device=chosen.device)] = True
        text = token_output(
            self,
            batch,
            states,
            [self._positions_before(of_prompt[0], r) for of_prompt, r in zip(rows, reasonings, strict=True)],
            sampled=batch.action_mask & ~chosen,
            entropy_gradient=entropy_gradient,
        )
        candidate_positions = [
            [of_end[len(body) - length :] for of_end in of_prompt]
            for of_prompt, body, length in zip(rows, bodies, lengths, strict=True)
        ]
        logprobs = self.choice.logprobs(self.llm, prompts, states, candidate_positions)
        return replace(
            text,
            logprobs=text.logprobs.masked_scatter(chosen, logprobs.gather(1, batch.choices[:, None])),
            entropy=text.entropy.masked_scatter(chosen, categorical_entropy(logprobs)),
        )

    def _positions_before(self, rows: Sequence[int], reasoning: TokenIds) -> list[int]:
        """The rows of hidden states before each token of a response, from those behind each token that stays:
        a token that ended the reasoning and the first of the answer prefix come behind the same one."""
        end = len(self._without_stop(reasoning))
        return [*rows[: end + 1], *rows[end if end < len(reasoning) else end + 1 :]]

    def _score(self, answered: Sequence[tuple[Prompt, int]], output: GenerationOutput) -> Tensor:
        """[S, C] log-probabilities of each prompt's candidates behind the text of that number, on the CPU."""
        prompts, rows = zip(*answered, strict=True)
        texts = [output.responses[row].token_ids for row in rows]
        ends = self.choice.sequences(prompts)
        if output.kv_cache is None:
            bodies = [
                p.token_ids + self._without_stop(text) + self.prefix_ids
                for p, text in zip(prompts, texts, strict=True)
            ]
            states, positions = self._run_continuations(bodies, list(map(len, bodies)), ends)
        else:
            tails = [self._without_stop(text[-1:]) + self.prefix_ids for text in texts]
            room = max(map(len, tails)) + max(len(build_token_trie(of_prompt)) for of_prompt in ends)
            kv_cache = output.kv_cache.select(rows, room)
            states = kv_cache.extend(self.llm, tails)
            last = [end - 1 for end in accumulate(map(len, tails))]
            states, positions = run_branches(self.llm, kv_cache, states[last], ends)
        return self.choice.logprobs(self.llm, prompts, states, positions).cpu()

    def _decided(self, prompt: Prompt, text: Response, choice: int, logprob: float) -> Response:
        candidate_ids = prompt.candidate_ids[choice]
        before, after = len(self.prefix_ids), len(candidate_ids) - 1
        return Response(
            token_ids=text.token_ids + self.prefix_ids + candidate_ids,
            logprobs=(*text.logprobs, *(0.0,) * before, logprob, *(0.0,) * after),
            finished=text.finished,
            text=text.text + self.answer_prefix + prompt.candidates[choice],
            action_mask=(*text.action_mask, *(False,) * before, True, *(False,) * after),
            choice=choice,
            action_text=prompt.candidates[choice],
            history_ids=self._without_stop(text.token_ids) + self.prefix_ids + candidate_ids,
        )


def sample(logprobs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Choices [S] from log-probabilities [S, C]; without a generator the likeliest."""
    if generator is None:
        return logprobs.argmax(-1)
    return torch.multinomial(logprobs.exp().to(generator.device), 1, generator=generator).squeeze(-1).cpu()
