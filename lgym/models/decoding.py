"""Writing many replies at once, token by token.

What prompts share is run once, and what a past already holds of them not again (`lgym/models/past.py`). A step costs one
token a reply. On a CPU a reply that has ended leaves the batch; on a GPU, which would have to wait for the answer to
"which?" after each token, ended replies stay, all shapes stay what they are, and the step is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lgym.batch import Reply
from lgym.functional.truncation import truncate_logits
from lgym.models.llm import ValueHeadLLM
from lgym.models.packing import Path
from lgym.models.past import Past, Step, past_of

LOOKS = 16
"""Tokens after which the fixed-shape loop looks whether every reply has ended."""

BLOCK = 256
"""Tokens of the vocabulary that a draw first looks at as one."""

Over = Callable[[Sequence[list[int]]], list[bool]]
"""Whether replies, of which the tokens so far are given, are over; for ends that no single token marks."""


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from: softmax(logits / temperature), cut off by top_k and top_p."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def probabilities(self, logits: Tensor) -> Tensor:
        """[..., V] logits of any precision to [..., V] probabilities, at least fp32."""
        precise = torch.promote_types(logits.dtype, torch.float32)
        if self.temperature != 1:
            logits = logits.to(precise) / self.temperature
        return truncate_logits(logits, top_k=self.top_k, top_p=self.top_p).softmax(-1, dtype=precise)


@dataclass(frozen=True)
class Written:
    """What `write_replies` wrote."""

    replies: list[Reply]  # without their text
    ends: Tensor  # [S, H] hidden states at the ends of the prompts
    past: Past | None  # of each prompt with its reply but for its last token; None where the model keeps none here


@torch.no_grad()
def write_replies(
    llm: ValueHeadLLM,
    prompts: Sequence[Path],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    sampling: Sampling,
    generator: torch.Generator | None,
    known: Sequence[Past] = (),
    over: Over | None = None,
    row_length: int = 64,
    fixed_shapes: bool | None = None,
) -> Written:
    """One reply to each prompt; equal prompts get replies of their own.

    Args:
        llm: whose replies they are.
        prompts: token ids, at least one each.
        max_new_tokens: the longest reply, stop token included.
        stop_ids: tokens that end a reply.
        sampling: what is drawn from.
        generator: `None` takes the likeliest token each time.
        known: pasts that prompts may go on from.
        over: ends of other kinds, asked after every token.
        row_length: places of a packed row while the prompts are run.
        fixed_shapes: whether ended replies stay in the batch; by default on CUDA, unless `over` is asked.
    """
    past: Past | _NoPast
    if llm.layout == "tree":
        past, hidden = past_of(llm, prompts, known, room=max_new_tokens, row_length=row_length)
    else:
        past = _NoPast([list(prompt) for prompt in prompts], row_length)
        hidden = past.hidden(llm, range(len(prompts)))
    if fixed_shapes is None:
        fixed_shapes = llm.device.type == "cuda" and over is None
    draw = _Draw(sampling, generator)
    stops = torch.tensor(sorted(stop_ids), device=llm.device)
    if fixed_shapes and isinstance(past, Past):
        ids, logprobs, lengths, ended = _write_fixed(llm, past, hidden, max_new_tokens, stops, draw)
    else:
        ids, logprobs, lengths, ended = _write(llm, past, hidden, max_new_tokens, stops, draw, over)
    columns = ids.tolist(), logprobs.double().tolist(), lengths.tolist(), ended.tolist()
    replies = [Reply(tuple(i[:n]), tuple(p[:n]), end) for i, p, n, end in zip(*columns, strict=True)]
    if isinstance(past, _NoPast):
        return Written(replies, hidden, None)
    past.lengths = torch.tensor([len(row) for row in past.rows], device=llm.device) + lengths.to(llm.device) - 1
    past.rows = [row + reply.ids[:-1] for row, reply in zip(past.rows, replies, strict=True)]
    return Written(replies, hidden, past)


@dataclass(frozen=True)
class _Draw:
    """One token from each distribution."""

    sampling: Sampling
    generator: torch.Generator | None

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[n, V] logits to n tokens and their log-probabilities."""
        probabilities = self.sampling.probabilities(logits)
        if self.generator is None:
            tokens = probabilities.argmax(-1)
        else:
            size = 2, len(probabilities)
            uniform = torch.rand(size, generator=self.generator, device=self.generator.device, dtype=probabilities.dtype)
            tokens = _inverse(probabilities, *uniform.to(probabilities.device))
        return tokens, probabilities.gather(-1, tokens[:, None]).squeeze(-1).log()


def _inverse(probabilities: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """[n] draws from [n, V] probabilities with two uniform numbers each: a block of tokens, then a token of the block.

    A sum over each block is all that looks at the whole vocabulary; noise for every token would take longer than a small
    model takes for its logits.
    """
    blocks = nn.functional.pad(probabilities, (0, -probabilities.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    block = _place(blocks.sum(-1), first)
    within = blocks.gather(1, block[:, None, None].expand(-1, 1, BLOCK)).squeeze(1)
    return block * BLOCK + _place(within, second)


def _place(weights: Tensor, uniform: Tensor) -> Tensor:
    """[n] places of [n, k] weights, each drawn as often as it weighs; never one of weight 0."""
    sums = weights.cumsum(-1)
    total = sums[:, -1:]
    target = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))
    return (sums <= target).sum(-1)


def _write(
    llm: ValueHeadLLM, past: Past | _NoPast, hidden: Tensor, limit: int, stops: Tensor, draw: _Draw, over: Over | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens and log-probabilities [S, limit], lengths and whether they ended [S]; what has ended leaves the batch."""
    count = len(hidden)
    ids = torch.zeros(count, limit, dtype=torch.int64, device=llm.device)
    logprobs = torch.zeros(count, limit, dtype=torch.float32, device=llm.device)
    lengths = torch.full((count,), limit, device=llm.device)
    ended = torch.zeros(count, dtype=torch.bool, device=llm.device)
    rows = torch.arange(count, device=llm.device)
    width = past.width
    for step in range(limit):
        tokens, likelihoods = draw(llm.own_logits(hidden))
        ids[rows, step], logprobs[rows, step] = tokens, likelihoods.float()
        ends = torch.isin(tokens, stops)
        if over is not None:
            ends = ends | torch.tensor(over(ids[rows, : step + 1].tolist()), device=llm.device)
        ended[rows[ends]], lengths[rows[ends]] = True, step + 1
        rows, tokens = rows[~ends], tokens[~ends]
        if len(rows) == 0 or step + 1 == limit:
            break
        hidden = past.extend_by(llm, rows, tokens, None, width + step + 1)
    return ids, logprobs, lengths, ended


def _write_fixed(
    llm: ValueHeadLLM, past: Past, hidden: Tensor, limit: int, stops: Tensor, draw: _Draw
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `_write`; all replies go on to the end, and what they say after their own is not read."""
    count, width = len(hidden), past.width + limit
    rows = torch.arange(count, device=llm.device)
    tokens, likelihoods = draw(llm.own_logits(hidden))
    ids, logprobs = [tokens.clone()], [likelihoods]
    going = ~torch.isin(tokens, stops)

    def once() -> Tensor:
        step = Step.of(past, rows, None, width)
        return llm.run_next(tokens, step.positions + len(past.prefix_ids), step)

    run = _captured(once) if llm.device.type == "cuda" and limit > LOOKS // 2 else once
    for step in range(1, limit):
        if step % LOOKS == 0 and not bool(going.any()):
            break
        states = run()
        past.lengths += 1
        drawn, likelihoods = draw(llm.own_logits(states))
        tokens.copy_(drawn)
        ids.append(drawn)
        logprobs.append(likelihoods)
        going &= ~torch.isin(drawn, stops)
        if run is not once:
            llm.count(count)
    said = torch.stack(ids, dim=1)
    stopped = torch.isin(said, stops)
    ended = stopped.any(1)
    lengths = torch.where(ended, stopped.int().argmax(1) + 1, said.shape[1])
    return said, torch.stack(logprobs, dim=1).float(), lengths, ended


def _captured(once: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same as a CUDA graph; running it twice over writes the same keys and values to the same places."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states = once()

    def replay() -> Tensor:
        graph.replay()
        return states

    return replay


@dataclass
class _NoPast:
    """For models that keep no past here: every reply is run again from its beginning."""

    sequences: list[list[int]]
    row_length: int
    width: int = 0

    def extend_by(self, llm: ValueHeadLLM, rows: Tensor, tokens: Tensor, counts: None, width: int) -> Tensor:
        """As `Past.extend_by`, of one token each."""
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self.sequences[row].append(token)
        return self.hidden(llm, rows.tolist())

    def hidden(self, llm: ValueHeadLLM, rows: Sequence[int]) -> Tensor:
        sequences = [tuple(self.sequences[row]) for row in rows]
        states, index = llm.hidden_states(sequences, [len(s) for s in sequences], row_length=self.row_length)
        return states[[own[0] for own in index]]
