"""Text of others on its way to a tokenizer, a terminal or a file: it stays plain text, and too long a text is
cut."""

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

MARK = "\ufdd0"  # cuts text before encoding; Unicode keeps this noncharacter free for a program's own use
REPLACEMENT_CHAR = "\ufffd"
LEFT_OUT = " [… {} characters left out …] "

_UNENCODABLE = re.compile(f"[\ud800-\udfff{MARK}]")
_WORD = re.compile(r"[\w\s▁]*")


def replace_surrogates(text: str) -> str:
    """Text that can be encoded: surrogates and `MARK` become the replacement character."""
    return _UNENCODABLE.sub(REPLACEMENT_CHAR, text)


def escape_control_chars(text: str) -> str:
    """Text that no terminal acts on: what is not printable becomes an escape; newlines stay."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def truncate_middle(text: str, kept: int) -> str:
    """The beginning and the end of a text, `kept` characters together, with `LEFT_OUT` between them."""
    if len(text) <= kept:
        return text
    return text[: kept - kept // 2] + LEFT_OUT.format(len(text) - kept) + text[len(text) - kept // 2 :]


def fit_to_tokens(text: str, tokens: Callable[[str], int], room: int, kept: int) -> int:
    """Number of characters, `kept` at most, to which `truncate_middle` must cut a text for it to fit `room`
    tokens.

    Args:
        text: the whole text.
        tokens: counts the tokens of a text.
        room: the limit, in tokens.
        kept: the limit, in characters.

    Returns:
        The number of characters; 0 if even that is too long.
    """
    while kept and (count := tokens(truncate_middle(text, kept))) > room:
        frame = tokens("")
        kept = max(0, min(kept - 1, len(text) - 1, kept * (room - frame) // max(1, count - frame)))
    return kept


def as_json(record: Any, **options: Any) -> str:
    """JSON that is safe to print and to split into lines: readable text, with escapes for what is not
    printable.

    `options` are those of `json.dumps`.
    """
    text = json.dumps(record, ensure_ascii=False, **options)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


class SpecialTokenEscaper:
    """Encodes text that spells a tokenizer's special tokens as plain text.

    A tokenizer reads `<|im_end|>` wherever it stands as the one token that ends a turn. Only the chat
    template may use it so. `escape` puts a `MARK` inside every other spelling of such a token, and `encode`
    cuts there: either side is a part of the token's name, and is read as any other text. Other text is
    encoded as always.

    The tokens are the special ones, and all others that were added to the tokenizer's vocabulary except words
    and white space.

    Attributes:
        markup_ids: ids of the tokens that are added and not special, such as `<think>`.
        escape: `(text, own=frozenset())`: the text with marks in every token that it spells, except those of
            `own`.
        token_ids: `(text)`: token ids of the escaped text.
        may_complete_special_token: `(text)`: the text could be a part of a token's name that other text
            completes.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        added = tokenizer.added_tokens_decoder
        special |= {token_id: token.content for token_id, token in added.items() if token.special}
        self.markup_ids = frozenset(
            token_id
            for token_id, token in added.items()
            if token_id not in special and not _WORD.fullmatch(token.content)
        )
        self._names = special | {token_id: added[token_id].content for token_id in self.markup_ids}
        names = sorted(filter(None, self._names.values()), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, names)) or r"\b\B")
        self._prefixes = frozenset(name[:size] for name in names for size in range(1, len(name)))
        self._suffixes = frozenset(name[size:] for name in names for size in range(1, len(name)))
        self._longest = max(map(len, names), default=0)
        self.escape = lru_cache(maxsize=1024)(self._escape)
        self.token_ids = lru_cache(maxsize=1024)(lambda text: self.encode(self.escape(text)))
        self.may_complete_special_token = lru_cache(maxsize=1024)(self._may_complete)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of text that may have marks in it; unmarked text is read as the tokenizer reads it."""
        parts = [part for part in text.split(MARK) if part]
        if not parts:
            return ()
        encoded = self._tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"]
        return tuple(token_id for token_ids in encoded for token_id in token_ids)

    def special_ids(self, text: str) -> tuple[int, ...]:
        """Ids of the escaped tokens that `encode` reads in a text."""
        return tuple(token_id for token_id in self.encode(text) if token_id in self._names)

    def _may_complete(self, text: str) -> bool:
        core = text.strip()
        sizes = range(1, min(len(core), self._longest) + 1)
        inside = len(core) < self._longest and any(core in name for name in self._names.values())
        return inside or any(
            core[-size:] in self._prefixes or core[:size] in self._suffixes for size in sizes
        )

    def _escape(self, text: str, own: frozenset[int] = frozenset()) -> str:
        return MARK.join(self._split([replace_surrogates(text)], own))

    def _split(self, texts: list[str], own: frozenset[int]) -> list[str]:
        """Cuts texts where they spell a token; cutting one may uncover another."""
        parts: list[str] = []
        for text, spans in zip(texts, self._token_spans(texts, own), strict=True):
            pieces = _cut(text, spans)
            parts += self._split(pieces, own) if spans else pieces
        return parts

    def _token_spans(self, texts: list[str], own: frozenset[int]) -> list[list[tuple[int, int, str]]]:
        if not self._tokenizer.is_fast:
            wanted = {name for token_id, name in self._names.items() if token_id not in own}
            return [
                [(*m.span(), m[0]) for m in self._spelled.finditer(text) if m[0] in wanted] for text in texts
            ]
        encoded = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        unknown = self._tokenizer.unk_token_id
        return [
            [
                (start, end, self._names[token_id])
                for token_id, (start, end) in zip(token_ids, offsets, strict=True)
                if token_id in self._names and token_id not in own and start < end
                if token_id != unknown
                or self._names[token_id] in text[start:end]  # else it stands for unknown text
            ]
            for text, token_ids, offsets in zip(
                texts, encoded["input_ids"], encoded["offset_mapping"], strict=True
            )
        ]


def _cut(text: str, spans: Iterable[tuple[int, int, str]]) -> list[str]:
    """Cuts each span in two; a span of a single character becomes `REPLACEMENT_CHAR`."""
    pieces, begin = [], 0
    for start, end, name in spans:
        if end - start < 2:
            pieces.append(text[begin:start] + REPLACEMENT_CHAR)
            begin = end
            continue
        found = text.find(name, start, end)
        middle = (
            (start + end) // 2 if found < 0 or len(name) < 2 else found + 1
        )  # the span may hold white space around it
        pieces.append(text[begin:middle])
        begin = middle
    return [*pieces, text[begin:]]
