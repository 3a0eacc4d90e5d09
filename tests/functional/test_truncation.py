"""Cutting off the unlikely part: which tokens are left, by hand."""

import pytest
import torch

from lgym.functional.truncation import truncate_logits

PROBABILITIES = torch.tensor([0.1, 0.4, 0.2, 0.3])
LOGITS = PROBABILITIES.log()


def kept(**settings) -> list[int]:
    return truncate_logits(LOGITS, **settings).isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.4}, [1]),  # 0.4 is enough
        ({"top_p": 0.41}, [1, 3]),  # 0.4 is not
        ({"top_p": 0.71}, [1, 2, 3]),
        ({"top_p": 1e-9}, [1]),  # one token is always left
        ({"top_k": 2, "top_p": 0.5}, [1]),  # of 4/7 and 3/7, the first is enough
    ],
)
def test_what_is_kept(settings, expected):
    assert kept(**settings) == expected


def test_what_is_kept_is_unchanged_and_rows_are_apart():
    rows = torch.stack([LOGITS, LOGITS.flip(0)])
    cut = truncate_logits(rows, top_k=1)
    assert cut.tolist() == [
        [-torch.inf, rows[0, 1].item(), -torch.inf, -torch.inf],
        [-torch.inf] * 2 + [rows[1, 2].item(), -torch.inf],
    ]


def test_limits_are_along_the_vocabulary():
    """Catches a limit taken over rows: by 0.41 each row keeps its two likeliest, as many as there are
    rows."""
    rows = torch.stack([LOGITS, LOGITS.flip(0)])
    for settings in ({"top_p": 0.41}, {"top_k": 2}):
        cut = truncate_logits(rows, **settings)
        assert cut.isfinite().tolist() == [[False, True, False, True], [True, False, True, False]]


def test_a_nucleus_ends_where_its_probability_is_reached():
    """Catches a token too many where the sum is exact: of four with 0.25 each, two have 0.5."""
    assert int(truncate_logits(torch.zeros(4), top_p=0.5).isfinite().sum()) == 2


def test_a_nucleus_is_summed_in_fp32():
    """In bf16 sums of a thousand probabilities of 0.001 are rounded: of 0.5005, 501 are needed."""
    cut = truncate_logits(torch.zeros(1000, dtype=torch.bfloat16), top_p=0.5005)
    assert cut.dtype == torch.bfloat16
    assert int(cut.isfinite().sum()) == 501


def test_no_limits_cut_nothing():
    """Catches a nucleus of 1 that is searched for: rounded sums of many probabilities reach 1 before the last
    of them."""
    logits = torch.linspace(0, -30, 1000)
    assert truncate_logits(logits, top_k=0, top_p=1.0) is logits


@pytest.mark.parametrize("settings", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_bad_limits_are_refused(settings):
    with pytest.raises(ValueError, match="top_"):
        truncate_logits(LOGITS, **settings)
