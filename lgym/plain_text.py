"""The text of others on its way to a tokenizer or a file: it stays text, whatever it spells, and too much is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

MARK = "\ufdd0"
"""Where text is cut in two before it is encoded. No character: Unicode keeps it free for a program's own use."""

REPLACEMENT_CHAR = "\ufffd"
"""What stands for what cannot be written: half a surrogate pair, and `MARK` itself."""

LEFT_OUT = " [… {} characters left out …] "
"""What stands in the middle of a text that was shortened."""

_HALVES = re.compile(f"[\ud800-\udfff{MARK}]")


def replace_surrogates(text: str) -> str:
    """Text that can be encoded."""
    return _HALVES.sub(REPLACEMENT_CHAR, text)


def truncate_middle(text: str, kept: int) -> str:
    """The beginning and the end of a text, of `kept` characters together, with `LEFT_OUT` between them; all of it if it has
    no more."""
    if len(text) <= kept:
        return text
    return text[: kept - kept // 2] + LEFT_OUT.format(len(text) - kept) + text[len(text) - kept // 2 :]


def as_json(record: Any, **options: Any) -> str:
    """JSON that reads as text where it can, and in which what is not printable is an escape: safe to print and to split into
    lines. `options` are those of `json.dumps`."""
    text = json.dumps(record, ensure_ascii=False, **options)
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def fit_to_tokens(text: str, tokens: Callable[[str], int], room: int, kept: int) -> int:
    """How many characters, `kept` at most, `truncate_middle` may keep of a text for `tokens` to count no more than `room`; 0 if
    even that is too much."""
    while kept and (count := tokens(truncate_middle(text, kept))) > room:
        frame = tokens("")
        kept = max(0, min(kept - 1, len(text) - 1, kept * (room - frame) // max(1, count - frame)))
    return kept


class SpecialTokenEscaper:
    """Encodes text in which a tokenizer's own tokens are spelled as what it is: text.

    A tokenizer reads `<|im_end|>` wherever it stands as the one token that ends a turn. Here that is for the chat template
    alone. `escape` puts a `MARK` into whatever else spells such a token, and `encode` cuts there: on either side of it is a
    part of the token's name, which is read as any other text. Text that spells none is encoded as it always was.

    Those are the special tokens, and all others that were added to the tokenizer's vocabulary but for words and white space.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        added = tokenizer.added_tokens_decoder
        special |= {number: token.content for number, token in added.items() if token.special}
        self.markup_ids = frozenset(n for n, token in added.items() if n not in special and not _is_word(token.content))
        """The numbers of those that are not special, such as `<think>`."""
        self._names = special | {number: added[number].content for number in self.markup_ids}
        names = sorted(filter(None, self._names.values()), key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, names)) or r"\b\B")
        self._begins = frozenset(name[:size] for name in names for size in range(1, len(name)))
        self._ends = frozenset(name[size:] for name in names for size in range(1, len(name)))
        self._longest = max(map(len, names), default=0)
        self.escape = lru_cache(maxsize=1024)(self._quoted)
        self.may_complete_special_token = lru_cache(maxsize=1024)(self._touches)
        self.token_ids = lru_cache(maxsize=1024)(self._ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of text that may have marks in it; what is not marked is read as the tokenizer reads it."""
        parts = [part for part in text.split(MARK) if part]
        if not parts:
            return ()
        ids = self._tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"]
        return tuple(number for part in ids for number in part)

    def special_ids(self, text: str) -> tuple[int, ...]:
        """Those of the tokenizer's own tokens that `encode` reads in a text."""
        return tuple(number for number in self.encode(text) if number in self._names)

    def _touches(self, text: str) -> bool:
        """Whether a text could be part of a token's name that what stands before or behind it completes."""
        core = text.strip()
        sizes = range(1, min(len(core), self._longest) + 1)
        within = len(core) < self._longest and any(core in name for name in self._names.values())
        return within or any(core[-size:] in self._begins or core[:size] in self._ends for size in sizes)

    def _quoted(self, text: str, own: frozenset[int] = frozenset()) -> str:
        """The text with marks where it spells tokens other than `own`."""
        return MARK.join(self._parts([replace_surrogates(text)], own))

    def _ids(self, text: str) -> tuple[int, ...]:
        """The tokens of a text, `escape`."""
        return self.encode(self._quoted(text))

    def _parts(self, texts: list[str], own: frozenset[int]) -> list[str]:
        """The texts one after the other, cut where they spell a token; cutting one may uncover another."""
        parts: list[str] = []
        for text, places in zip(texts, self._places(texts, own), strict=True):
            pieces = _cut(text, places)
            parts += self._parts(pieces, own) if places else pieces
        return parts

    def _places(self, texts: list[str], own: frozenset[int]) -> list[list[tuple[int, int, str]]]:
        """Where each text spells a token, from where to where, and the token's name."""
        if not self._tokenizer.is_fast:
            wanted = {name for number, name in self._names.items() if number not in own}
            return [[(*m.span(), m[0]) for m in self._spelled.finditer(text) if m[0] in wanted] for text in texts]
        read = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        unknown = self._tokenizer.unk_token_id
        return [
            [
                (start, end, self._names[number])
                for number, (start, end) in zip(ids, spans, strict=True)
                if number in self._names and number not in own and start < end
                if number != unknown or self._names[number] in text[start:end]  # else it stands for what it cannot write
            ]
            for text, ids, spans in zip(texts, read["input_ids"], read["offset_mapping"], strict=True)
        ]


def _cut(text: str, places: Iterable[tuple[int, int, str]]) -> list[str]:
    """The text in pieces, each place in two of them; a place of a single character becomes `REPLACEMENT_CHAR`."""
    pieces, begin = [], 0
    for start, end, name in places:
        if end - start < 2:
            pieces.append(text[begin:start] + REPLACEMENT_CHAR)
            begin = end
            continue
        at = text.find(name, start, end)
        middle = (start + end) // 2 if at < 0 or len(name) < 2 else at + 1  # white space around it may be its own
        pieces.append(text[begin:middle])
        begin = middle
    return [*pieces, text[begin:]]


def _is_word(name: str) -> bool:
    return all(character.isalnum() or character.isspace() or character in "_▁" for character in name)
