"""Writing many replies at once, token by token.

The distinct prompts are run once, their common prefix once for all of them; keys and values stay in place, a step adds one
to each reply, and a reply that has ended leaves the batch:

    prefix, once          |  own: prompt's rest, then the reply
    keys [kv_heads, P, d] |  keys [S, kv_heads, T, d]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lgym.batch import Reply
from lgym.functional.truncation import truncate_logits
from lgym.models.llm import ValueHeadLLM
from lgym.models.packing import PackedRows, Path
from lgym.models.tree_attention import Tree


@dataclass(frozen=True)
class Sampling:
    """The distribution that tokens are drawn from: softmax(logits / temperature), cut off by top_k and top_p."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def logprobs(self, logits: Tensor) -> Tensor:
        """[..., V] logits to [..., V] log-probabilities, at least fp32."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        return truncate_logits(logits, top_k=self.top_k, top_p=self.top_p).log_softmax(-1)


@torch.no_grad()
def write_replies(
    llm: ValueHeadLLM,
    prompts: Sequence[Path],
    *,
    max_new_tokens: int,
    stop_ids: Collection[int],
    sampling: Sampling,
    generator: torch.Generator | None,
    row_length: int = 64,
) -> tuple[list[Reply], Tensor]:
    """One reply to each prompt, without its text; equal prompts get replies of their own.

    Args:
        llm: whose replies they are.
        prompts: token ids, at least one each.
        max_new_tokens: the longest reply, stop token included.
        stop_ids: tokens that end a reply.
        sampling: what is drawn from.
        generator: on the CPU; `None` takes the likeliest token each time.
        row_length: places of a packed row while the prompts are run.

    Returns:
        The replies, and [S, H] hidden states at the ends of their prompts.
    """
    past: _Past | _NoPast
    if llm.layout == "tree":
        past, hidden = _prefill(llm, prompts, max_new_tokens, row_length)
    else:
        past = _NoPast([list(prompt) for prompt in prompts], row_length)
        hidden = past.hidden(llm, range(len(prompts)))
    ends = hidden
    stops = torch.tensor(sorted(stop_ids), device=llm.device)
    ids = torch.zeros(len(prompts), max_new_tokens, dtype=torch.int64, device=llm.device)
    logprobs = torch.zeros(len(prompts), max_new_tokens, dtype=torch.float64)
    lengths = torch.full((len(prompts),), max_new_tokens, device=llm.device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=llm.device)
    rows = torch.arange(len(prompts), device=llm.device)
    for step in range(max_new_tokens):
        tokens, likelihoods = _draw(sampling.logprobs(llm.logits(hidden)), generator)
        ids[rows, step] = tokens
        logprobs[rows.cpu(), step] = likelihoods.cpu().double()
        over = torch.isin(tokens, stops)
        ended[rows[over]], lengths[rows[over]] = True, step + 1
        rows, tokens = rows[~over], tokens[~over]
        if len(rows) == 0 or step + 1 == max_new_tokens:
            break
        hidden = past.extend(llm, rows, tokens)
    replies = [
        Reply(tuple(reply[:length]), tuple(likelihood[:length]), over)
        for reply, likelihood, length, over in zip(
            ids.tolist(), logprobs.tolist(), lengths.tolist(), ended.tolist(), strict=True
        )
    ]
    return replies, ends


def _draw(logprobs: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """[n, V] log-probabilities to n tokens and their log-probabilities: the Gumbel-max trick, with noise from the CPU."""
    if generator is None:
        tokens = logprobs.argmax(-1)
    else:
        noise = torch.empty(logprobs.shape, dtype=torch.float32).exponential_(generator=generator)
        noise.clamp_min_(torch.finfo(torch.float32).tiny)  # a 0 would make NaN of a token that is cut off
        tokens = (logprobs - noise.log().to(logprobs.device)).argmax(-1)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


@dataclass
class _Past:
    """Keys and values of every layer, for replies that share a prefix."""

    lengths: Tensor  # [S] int64, tokens behind the prefix
    longest: int  # no row is longer
    prefix_length: int
    prefix: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)  # [kv_heads, P, d]
    own: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)  # [S, kv_heads, T, d]

    def extend(self, llm: ValueHeadLLM, rows: Tensor, tokens: Tensor) -> Tensor:
        """Adds a token to each of the rows; [n, H] hidden states there."""
        lengths = self.lengths[rows]
        self.longest += 1
        hidden = llm.run_next(tokens, lengths + self.prefix_length, _Step(self, rows, lengths))
        self.lengths[rows] = lengths + 1
        return hidden


@dataclass
class _NoPast:
    """For models that keep no past here: every reply is run again from its beginning."""

    sequences: list[list[int]]
    row_length: int

    def extend(self, llm: ValueHeadLLM, rows: Tensor, tokens: Tensor) -> Tensor:
        """As `_Past.extend`."""
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self.sequences[row].append(token)
        return self.hidden(llm, rows.tolist())

    def hidden(self, llm: ValueHeadLLM, rows: Sequence[int]) -> Tensor:
        sequences = [tuple(self.sequences[row]) for row in rows]
        states, index = llm.hidden_states(sequences, [len(s) for s in sequences], row_length=self.row_length)
        return states[[own[0] for own in index]]


@dataclass
class _Step:
    """A layout where each token of the row goes on from a past of its own."""

    past: _Past
    rows: Tensor
    lengths: Tensor

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        keys, values = self.past.own[module]
        keys[self.rows, :, self.lengths] = k
        values[self.rows, :, self.lengths] = v
        longest, every = self.past.longest, len(self.rows) == len(keys)
        keys, values = ((states if every else states[self.rows])[:, :, :longest] for states in (keys, values))
        q = q.unflatten(1, (k.shape[1], -1))  # [n, kv_heads, group, d]
        scores = q @ keys.transpose(-1, -2) * scale
        unseen = torch.arange(longest, device=q.device) > self.lengths[:, None]
        scores = _cap(scores, softcap).masked_fill(unseen[:, None, None], -torch.inf)
        if self.past.prefix_length == 0:
            return (scores.softmax(-1) @ values).flatten(1, 2)
        prefix_keys, prefix_values = self.past.prefix[module]  # [kv_heads, P, d]
        shared = q.transpose(0, 1).flatten(1, 2)  # [kv_heads, n * group, d]
        before = _cap(shared @ prefix_keys.transpose(-1, -2) * scale, softcap).view(*q.shape[1::-1], q.shape[2], -1)
        weights = torch.cat([before.transpose(0, 1), scores], dim=-1).softmax(-1)
        of_prefix, of_own = weights.split([prefix_keys.shape[1], longest], dim=-1)
        out = (of_prefix.transpose(0, 1).flatten(1, 2) @ prefix_values).view(*q.shape[1::-1], q.shape[2], -1).transpose(0, 1)
        return (out + of_own @ values).flatten(1, 2)


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


@dataclass
class _Recording:
    """A tree that keeps what goes through it."""

    tree: Tree
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)  # [P + N, kv_heads, d]

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> Tensor:
        self.seen[module] = k, v
        return self.tree.attend(module, q, k, v, scale, softcap)


def _prefill(llm: ValueHeadLLM, prompts: Sequence[Path], room: int, row_length: int) -> tuple[_Past, Tensor]:
    """Runs the distinct prompts: the past of every reply, with room for it, and [S, H] hidden states at their ends."""
    distinct = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    owners = torch.tensor([distinct[prompt] for prompt in prompts], device=llm.device)
    recordings: list[_Recording] = []

    def recorded(tree: Tree) -> _Recording:
        recordings.append(_Recording(tree))
        return recordings[-1]

    prefix, packed = llm.share_out(list(distinct), [len(prompt) for prompt in distinct], row_length=row_length)
    hidden = llm.run_tree(prefix, packed, recorded)
    (recording,) = recordings
    ends = torch.tensor([places[-1] for places in packed.places], device=llm.device)
    return _past(recording, packed, len(prefix), owners, room), hidden[ends[owners]]


def _past(recording: _Recording, packed: PackedRows, prefix_length: int, owners: Tensor, room: int) -> _Past:
    rests = torch.tensor([len(places) for places in packed.places], device=owners.device)
    index = torch.zeros(len(packed.places), int(rests.max()), dtype=torch.int64)
    for number, places in enumerate(packed.places):
        index[number, : len(places)] = torch.tensor(places)
    index = index.to(owners.device)[owners] + prefix_length  # [S, longest rest]
    past = _Past(rests[owners], int(rests.max()), prefix_length)
    for module, states in recording.seen.items():
        past.prefix[module] = tuple(s[:prefix_length].transpose(0, 1).contiguous() for s in states)  # type: ignore[assignment]
        past.own[module] = tuple(_with_room(s[index].transpose(1, 2), room) for s in states)  # type: ignore[assignment]
    return past


def _with_room(states: Tensor, room: int) -> Tensor:
    """[S, kv_heads, L, d] with `room` more places behind."""
    shape = (*states.shape[:2], states.shape[2] + room, states.shape[3])
    roomy = states.new_zeros(shape)
    roomy[:, :, : states.shape[2]] = states
    return roomy
