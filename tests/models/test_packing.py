"""Packing: the layout must hold every token once, and let it see its own sequence only."""

import pytest

from lgym.models.packing import common_prefix_length, pack

CAT = ((5, 6, 7), (5, 6, 8), (5, 9))


def test_shared_beginnings_are_held_once():
    """A trie that forgets to share would hold 8 tokens here, not 5: 5 6 7, then 8, then 9."""
    packed = pack(CAT, row_length=16)
    assert packed.token_ids.tolist() == [[5, 6, 7, 8, 9]]
    assert packed.depths.tolist() == [[0, 1, 2, 2, 1]]
    assert packed.places == ((0, 1, 2), (0, 1, 3), (0, 4))
    assert packed.real_tokens == 5


def test_a_token_attends_to_its_ancestors_only():
    """A causal mask alone would let 8 see 7, which is not in its sequence."""
    attends = pack(CAT, row_length=16).attends[0].int().tolist()
    assert attends == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 0, 0, 1]]


def test_a_full_row_starts_another_with_the_whole_path():
    """A row that shares with a row before it would attend to tokens that it does not hold."""
    packed = pack(CAT, row_length=3)
    assert packed.token_ids.tolist() == [[5, 6, 7], [5, 6, 8], [5, 9, 0]]
    assert packed.places == ((0, 1, 2), (3, 4, 5), (6, 7))
    assert packed.padding_share == pytest.approx(1 / 9)


def test_a_sequence_longer_than_a_row_gets_a_row_of_its_length():
    """Cutting it would lose the prompt's end."""
    assert pack([(1, 2, 3, 4)], row_length=2).token_ids.tolist() == [[1, 2, 3, 4]]


def test_a_sequence_within_another_takes_no_place():
    """A prompt that another one extends (the next turn of an episode) is there already."""
    packed = pack([(1, 2, 3), (1, 2), (1, 2, 3)], row_length=8)
    assert packed.real_tokens == 3
    assert packed.places == ((0, 1, 2), (0, 1), (0, 1, 2))


def test_the_turns_of_a_long_episode_are_one_row():
    """Cut at `row_length`, every turn beyond it would compute its whole history again: quadratic in turns."""
    turns = [tuple(range(1, 3 * n + 1)) for n in range(1, 9)]
    packed = pack(turns, row_length=4)
    assert packed.token_ids.shape == (1, 24)
    assert packed.real_tokens == 24


def test_without_sharing_every_sequence_is_a_row():
    """The plain computation is the oracle, so it must share nothing."""
    packed = pack(CAT, row_length=16, share=False)
    assert packed.token_ids.tolist() == [[5, 6, 7], [5, 6, 8], [5, 9, 0]]


@pytest.mark.parametrize(
    ("sequences", "expected"), [([], 0), ([(1, 2)], 2), ([(1, 2), (1, 3)], 1), ([(1,), (1, 2)], 1), ([(1,), (2,)], 0)]
)
def test_common_prefix(sequences, expected):
    """One token too many would put the prompt's last token into the prefix."""
    assert common_prefix_length(sequences) == expected
