"""Packing: every token is held once, and attends to its own sequence alone."""

from pathlib import Path

import pytest

import sharing
from lgym.models.prefix_sharing.packing import common_prefix_length, pack

CAT = ((5, 6, 7), (5, 6, 8), (5, 9))


def test_shared_prefixes_are_held_once():
    """A trie that forgets to share would hold 8 tokens here, not 5: 5 6 7, then 8, then 9."""
    packed = pack(CAT, row_length=16)
    assert packed.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert packed.positions.tolist() == [0, 1, 2, 2, 1]
    assert packed.lengths == (5,)
    assert packed.token_index == ((0, 1, 2), (0, 1, 3), (0, 4))
    assert packed.num_tokens == 5


def test_a_token_attends_to_its_ancestors_only():
    """A causal mask alone would let 8 see 7, which is not in its sequence."""
    attends = pack(CAT, row_length=16).attn_masks[0].astype(int).tolist()
    assert attends == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 0, 0, 1]]


def test_a_full_row_starts_another_with_the_whole_path():
    """A row that shares with a row before it would attend to tokens that it does not hold, without a row
    prefix."""
    one, other = (5, *range(10, 30)), (5, *range(30, 49))
    packed = pack([one, other], row_length=2, row_prefixes=False)
    assert packed.pad(packed.token_ids).tolist() == [list(one), [*other, 0]]
    assert packed.token_index == (tuple(range(21)), tuple(range(21, 41)))
    assert packed.row_prefixes == ((), ())


def test_a_full_row_continues_in_another_with_a_row_prefix():
    """Behind a long prompt, one candidate after the other opened a row that ran the whole prompt again."""
    prompt = tuple(range(100, 108))
    packed = pack([(*prompt, 1, 2, 3), (*prompt, 4, 5, 6), (*prompt[:7], 200)], row_length=1)
    assert packed.lengths == (11, 4)
    assert packed.token_ids.tolist() == [*prompt, 1, 2, 3, 4, 5, 6, 200]
    assert packed.row_prefixes == ((), tuple(range(8)))
    assert packed.row_prefix_lengths.tolist() == [0] * 11 + [8, 8, 8, 7]
    assert packed.token_index[1] == (*range(8), 11, 12, 13)


def test_little_that_is_shared_is_computed_again():
    """A row prefix of a token or two costs more than these tokens."""
    packed = pack([(1, 2, *range(10, 74)), (1, 3, *range(10, 74))], row_length=64)
    assert packed.row_prefixes == ((), ())
    assert packed.num_tokens == 132


def test_a_sequence_longer_than_a_row_gets_a_row_of_its_length():
    """Cutting it would lose the prompt's end."""
    assert pack([(1, 2, 3, 4)], row_length=2).lengths == (4,)


def test_a_sequence_within_another_takes_no_place():
    """A prompt that another one extends (the next turn of an episode) is there already."""
    packed = pack([(1, 2, 3), (1, 2), (1, 2, 3)], row_length=8)
    assert packed.num_tokens == 3
    assert packed.token_index == ((0, 1, 2), (0, 1), (0, 1, 2))


@pytest.mark.parametrize("row_prefixes", [True, False])
def test_the_turns_of_a_long_episode_are_held_once(row_prefixes):
    """Cut at `row_length`, every turn beyond it would compute its whole history again: quadratic in turns."""
    turns = [tuple(range(1, 3 * n + 1)) for n in range(1, 9)]
    packed = pack(turns, row_length=4, row_prefixes=row_prefixes)
    assert packed.num_tokens == 24


def test_without_sharing_every_sequence_is_a_row():
    """The plain computation is the oracle, so it must share nothing."""
    packed = pack(CAT, row_length=16, share_prefixes=False)
    assert packed.pad(packed.token_ids).tolist() == [[5, 6, 7], [5, 6, 8], [5, 9, 0]]


@pytest.mark.parametrize(("name", "own", "paths"), list(sharing.cases()), ids=lambda given: str(given)[:24])
def test_tokens_computed_over_distinct_ones(name, own, paths):
    """At about 50 tokens of a prompt's own each further candidate or response ran the whole prompt again: up
    to 10 times."""
    assert pack(paths, row_length=64).num_tokens <= 1.15 * sharing.distinct_tokens(paths)


def test_the_table_is_that_of_the_docs(capsys):
    """`docs/speed.md` has it as the command prints it."""
    sharing.main()
    docs = Path(__file__).parents[3] / "docs" / "speed.md"
    assert capsys.readouterr().out.strip() in docs.read_text(encoding="utf-8")


def test_rows_without_row_prefixes_grow_for_what_they_share():
    """The layout with a cache per row cannot reach into another row: there a row holds all that shares more
    than it adds."""
    behind, conversations = sharing.behind, sharing.conversations
    for paths in (behind(200, 12, 4), behind(60, 12, 4), behind(200, 8, 32), conversations(4, 20, 30)):
        assert pack(paths, row_length=64, row_prefixes=False).num_tokens <= 1.15 * sharing.distinct_tokens(
            paths
        )


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [([], 0), ([(1, 2)], 2), ([(1, 2), (1, 3)], 1), ([(1,), (1, 2)], 1), ([(1,), (2,)], 0)],
)
def test_common_prefix(sequences, expected):
    """One token too many would put the prompt's last token into the prefix."""
    assert common_prefix_length(sequences) == expected
