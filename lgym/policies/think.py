"""Think, then choose: the language model writes a bounded text of its own, then one of the agent's candidates is chosen.

pi(text, c | prompt) = product over the text's tokens of  softmax(logits / temperature)[token]  *  pi(c | prompt, text, cue)

The cue, such as a new line and "Answer: ", is put behind the text; it is nobody's choice and learns nothing. A token that
ends the turn ends the text: it is drawn and learned, and the cue takes its place, since behind the end of a turn nobody
answers. The candidates' distribution is that of `CandidatePolicy` there. No action can be invalid, and both text and choice
are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from lgym.batch import Context, Likelihoods, Reply, ReplyBatch
from lgym.functional import categorical_entropy
from lgym.models.branches import beginnings, branched
from lgym.models.decoding import Written
from lgym.models.drawing import Sampling
from lgym.models.llm import ValueHeadLLM
from lgym.models.packing import Path
from lgym.models.past import Past
from lgym.policies.choice import Choice, Normalisation
from lgym.policies.generation import as_texts
from lgym.policies.writing import Writer, make_generator, prompt_values, stop_ids, token_likelihoods
from lgym.types import ConfigError


class ThinkPolicy(nn.Module):
    """Free text, then a choice between candidates."""

    llm: ValueHeadLLM
    speaks = True
    chooses = True

    def __init__(
        self,
        max_think_tokens: int = 32,
        cue: str = "\nAnswer: ",
        normalisation: Normalisation = "sum",
        choice_temperature: float = 1.0,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        replies_per_forward: int = 256,
        kv_cache_tokens: int = 65_536,
        row_length: int = 64,
        share_prefixes: bool = True,
    ) -> None:
        """
        Args:
            max_think_tokens: the longest text before the choice; what is longer is cut there.
            cue: what is put between the text and the candidates.
            normalisation: of the candidates' likelihoods: sum, token, word or trie, as in CandidatePolicy.
            choice_temperature: of the softmax over candidates; above 1 is closer to uniform.
            temperature: of the softmax over tokens, in playing and in learning alike; evaluation also plays greedily.
            top_k: draw from the likeliest tokens only; 0 draws from all.
            top_p: draw from the smallest set of likeliest tokens with this much probability; 1 draws from all.
            stop: texts that end the thinking, besides an end-of-turn token.
            replies_per_forward: how many distinct replies, or beginnings of them, are written together; bounds memory.
            kv_cache_tokens: of how many tokens, of prompts behind what all share and of replies, keys and values are held
                while these are written; bounds memory. A token of SmolLM2-135M takes 23 kB in bf16.
            row_length: places of a packed row. Longer rows share more and attend more; results are the same.
            share_prefixes: compute what prompts have in common once. Off, every sequence is run whole: for comparison.
        """
        super().__init__()
        if not cue:
            raise ConfigError("cue is empty; it must have some text, such as a new line, for the choice to stand behind.")
        sampling = Sampling(temperature, top_k, top_p)
        self.writer = Writer(max_think_tokens, sampling, as_texts(stop), row_length, replies_per_forward, kv_cache_tokens)
        self.choice = Choice(normalisation, choice_temperature)
        self.cue = cue
        self.share_prefixes = share_prefixes
        self.kv_cache_tokens = kv_cache_tokens
        self.detach_value = False

    @property
    def max_new_tokens(self) -> int:
        """The longest text and the cue; candidates are counted with the prompt."""
        return self.writer.limit + len(self.cue_ids)

    @property
    def has_critic(self) -> bool:
        """Whether its model has a value head."""
        return self.llm.value_head is not None

    def bind(self, llm: ValueHeadLLM) -> None:
        """Gives the policy its model; called once, when the model is built."""
        llm.share = self.share_prefixes
        self.llm = llm

    @property
    def cue_ids(self) -> Path:
        return tuple(self.llm.tokenizer(self.cue, add_special_tokens=False)["input_ids"])

    def _fed(self, thought: Path) -> Path:
        """What of a thought the cue stands behind."""
        return thought[:-1] if thought and thought[-1] in stop_ids(self.llm) else thought

    @torch.no_grad()
    def reply(self, contexts: Sequence[Context], seed: int | None, *, going_on: bool = True) -> tuple[list[Reply], Tensor]:
        """A text and a candidate for each context, and its state value [len(contexts)]; without a seed the likeliest.
        `going_on` keeps keys and values for later contexts that go on from these."""
        generator = make_generator(self.llm, seed)
        replies: dict[int, Reply] = {}
        values: dict[int, Tensor] = {}
        pasts = []
        for part in self.writer.parts(contexts):
            written = self.writer.write(self.llm, [contexts[i].prompt_ids for i in part], generator, keep=True)
            answered = [(contexts[i], row) for i, row in zip(part, written.rows, strict=True)]
            numbers = {own: number for number, own in enumerate(dict.fromkeys(answered))}
            logprobs = self._choices(list(numbers), written)[[numbers[own] for own in answered]]
            choices = _drawn(logprobs, generator).tolist()
            for i, (context, row), choice, own in zip(part, answered, choices, logprobs, strict=True):
                replies[i] = self._decided(context, written.replies[row], choice, float(own[choice]))
            values |= zip(part, self.llm.values(written.ends).cpu(), strict=True)
            if going_on:
                pasts.append(written.past)
        self.llm.keep(pasts)
        order = range(len(contexts))
        return [replies[i] for i in order], torch.stack([values[i] for i in order])

    def demonstrated(self, context: Context, text: str, ids: tuple[int, ...], choice: int) -> Reply:
        """A reply that is to be imitated: this choice, behind the thinking that was sampled, if any was."""
        thought = ids[: len(ids) - len(context.candidate_ids[choice]) - len(self.cue_ids)] if ids else ()
        return self._decided(context, Reply(thought, (0.0,) * len(thought), True), choice, 0.0)

    @torch.no_grad()
    def values(self, contexts: Sequence[Context]) -> Tensor:
        """[U] state values."""
        return prompt_values(self.llm, contexts, self.writer.row_length)

    def likelihoods(self, batch: ReplyBatch, *, entropy_gradient: bool = False) -> Likelihoods:
        """Of the tokens of each text, and of the choice at its candidate's first token; differentiable."""
        owners = [batch.contexts[row] for row in batch.rows.tolist()]
        at_choice = [int(own.nonzero().max()) for own in batch.mask]  # the choice is the last that was drawn
        cue = self.cue_ids
        thoughts = [reply[: place - len(cue)] for reply, place in zip(batch.replies, at_choice, strict=True)]
        bodies = [owner.prompt_ids + self._fed(own) + cue for owner, own in zip(owners, thoughts, strict=True)]
        ends = self.choice.sequences(owners)
        sequences = [body + end for body, own in zip(bodies, ends, strict=True) for end in own]
        lengths = [len(owner.prompt_ids) for owner, own in zip(owners, ends, strict=True) for _ in own]
        states, index = self.llm.hidden_states(sequences, lengths, row_length=self.writer.row_length)
        rows = iter(index)
        places = [[self._before_each(next(rows), thought) for _ in own] for own, thought in zip(ends, thoughts, strict=True)]
        chosen = torch.zeros_like(batch.mask)
        chosen[torch.arange(len(batch)), torch.tensor(at_choice, device=chosen.device)] = True
        said = token_likelihoods(
            self.llm,
            batch,
            states,
            [own[0] for own in places],
            temperature=self.writer.sampling.temperature,
            detach_value=self.detach_value,
            tokens=batch.mask & ~chosen,
            entropy_gradient=entropy_gradient,
        )
        behind = [[own[place:] for own in of_turn] for of_turn, place in zip(places, at_choice, strict=True)]
        logprobs = self.choice.logprobs(self.llm, owners, states, behind)
        taken = logprobs.gather(1, batch.choices[:, None]).squeeze(1)
        return replace(
            said,
            logprobs=said.logprobs.masked_scatter(chosen, taken),
            entropy=said.entropy.masked_scatter(chosen, categorical_entropy(logprobs)),
        )

    def _before_each(self, rows: Sequence[int], thought: Path) -> list[int]:
        """The rows of hidden states before each token of a reply, from those behind each that is fed: a token that ended the
        thought and the cue's first token come behind the same one."""
        end = len(self._fed(thought))
        return [*rows[: end + 1], *rows[end if end < len(thought) else end + 1 :]]

    def _choices(self, answered: Sequence[tuple[Context, int]], written: Written) -> Tensor:
        """[S, C] log-probabilities of each context's candidates behind the reply of that number and the cue, on the CPU."""
        starts = range(0, len(answered), self.writer.at_once)
        chosen = [self._choices_of(answered[start : start + self.writer.at_once], written) for start in starts]
        width = max(part.shape[1] for part in chosen)
        return torch.cat([nn.functional.pad(part, (0, width - part.shape[1]), value=-torch.inf) for part in chosen])

    def _choices_of(self, answered: Sequence[tuple[Context, int]], written: Written) -> Tensor:
        """As `_choices`, in one pass."""
        contexts, rows = [context for context, _ in answered], [row for _, row in answered]
        replies = [written.replies[row] for row in rows]
        ends = self.choice.sequences(contexts)
        if written.past is None:
            bodies = [c.prompt_ids + self._fed(r.ids) + self.cue_ids for c, r in zip(contexts, replies, strict=True)]
            sequences = [body + end for body, own in zip(bodies, ends, strict=True) for end in own]
            lengths = [len(body) for body, own in zip(bodies, ends, strict=True) for _ in own]
            states, index = self.llm.hidden_states(sequences, lengths, row_length=self.writer.row_length)
            of_ends = iter(index)
            places = [[next(of_ends) for _ in own] for own in ends]
        else:
            tails = [self._fed(reply.ids[-1:]) + self.cue_ids for reply in replies]
            states, places = _continued(self.llm, written.past, rows, tails, ends)
        return self.choice.logprobs(self.llm, contexts, states, places).cpu()

    def _decided(self, context: Context, reply: Reply, choice: int, logprob: float) -> Reply:
        """The reply with its cue and candidate."""
        candidate = context.candidate_ids[choice]
        forced = len(self.cue_ids) + len(candidate) - 1
        drawn = (True,) * len(reply.ids) + (False,) * len(self.cue_ids) + (True,) + (False,) * (len(candidate) - 1)
        unsaid = (0.0,) * len(self.cue_ids), (0.0,) * (forced - len(self.cue_ids))
        return Reply(
            ids=reply.ids + self.cue_ids + candidate,
            logprobs=(*reply.logprobs, *unsaid[0], logprob, *unsaid[1]),
            ended=reply.ended,
            text=reply.text + self.cue + context.candidates[choice],
            drawn=drawn,
            choice=choice,
            fed_ids=self._fed(reply.ids) + self.cue_ids + candidate,
        )


def _continued(
    llm: ValueHeadLLM, past: Past, rows: Sequence[int], tails: Sequence[Path], ends: Sequence[Sequence[Path]]
) -> tuple[Tensor, list[list[list[int]]]]:
    """Hidden states [K, H] where each of these rows of the past has gone on by its tail and by each of its ends, and for
    each row and end the rows of them from the tail's last token on."""
    room = max(map(len, tails)) + max(len(beginnings(own)) for own in ends)
    own = past.select(rows, room)
    states = own.extend(llm, range(len(tails)), tails)
    at = torch.tensor([len(tail) for tail in tails], device=states.device).cumsum(0) - 1
    return branched(llm, own, states[at], ends)


def _drawn(logprobs: Tensor, generator: torch.Generator | None) -> Tensor:
    """[S, C] log-probabilities to [S] choices."""
    if generator is None:
        return logprobs.argmax(-1)
    return torch.multinomial(logprobs.exp().to(generator.device), 1, generator=generator).squeeze(-1).cpu()
