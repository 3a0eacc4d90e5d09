"""How often a token is computed: tokens that a packed batch runs, over those that are different. Needs no
model.

    python scripts/sharing.py

Prompts have 40 tokens in common, and so many of their own that nothing else shares. Behind each stand
candidates of four tokens, or eight replies of 64; or the prompts are those of conversations of 20 turns. Rows
are of 64 places, as by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import commonprefix

from lgym.models.prefix_sharing.packing import TokenIds, pack

OWN = (10, 30, 60, 200, 500, 1000)
"""Tokens of a prompt's own."""

COMMON = 40
PROMPTS = 6


def behind(own: int, ends: int, length: int) -> list[TokenIds]:
    """Prompts with so many tokens of their own, and behind each so many ends of a length, no two alike;
    without the prefix, which is run by itself."""
    return [
        (*range(10_000 * p, 10_000 * p + own), *range(100_000 + 1000 * e, 100_000 + 1000 * e + length))
        for p in range(1, PROMPTS + 1)
        for e in range(ends)
    ]


def conversations(count: int, turns: int, tokens: int) -> list[TokenIds]:
    """The prompts of `count` episodes, each of which goes on from the one before by so many tokens of its
    own."""
    words = [tuple(range(10_000 * n, 10_000 * n + turns * tokens)) for n in range(1, count + 1)]
    return [own[: tokens * (turn + 1)] for own in words for turn in range(turns)]


def cases() -> Iterator[tuple[str, int, list[TokenIds]]]:
    """What stands behind prompts, how many tokens of their own these have, and the sequences."""
    for own in OWN:
        for ends in (2, 12, 40):
            yield (
                f"{ends} candidates",
                own,
                behind(own, ends, 3),
            )  # of the last token only its probability is asked
        yield "8 responses of 64 tokens", own, behind(own, 8, 63)
        if own <= 200:
            yield "20 turns", own, conversations(4, 20, own)


def distinct_tokens(sequences: Sequence[TokenIds]) -> int:
    """How many different beginnings the sequences have: in sorted order, what is new of each beside the one
    before."""
    ordered = ((), *sorted(set(sequences)))
    return sum(
        len(path) - len(commonprefix([before, path]))
        for before, path in zip(ordered, ordered[1:], strict=False)
    )


def computed_over_distinct(sequences: Sequence[TokenIds], row_length: int = 64) -> float:
    """1 where every distinct token is run once; the common prefix, of which that is always so, is counted
    too."""
    return (pack(sequences, row_length=row_length).num_tokens + COMMON) / (
        distinct_tokens(sequences) + COMMON
    )


def main() -> None:
    found = {(name, own): computed_over_distinct(sequences) for name, own, sequences in cases()}
    names = list(dict.fromkeys(name for name, _ in found))
    print("| tokens of a prompt's own | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for own in OWN:
        row = [f"{found[name, own]:.2f}" if (name, own) in found else "" for name in names]
        print(f"| {own} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
