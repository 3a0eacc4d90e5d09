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


@pytest.mark.parametrize("settings", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_bad_limits_are_refused(settings):
    with pytest.raises(ValueError, match="top_"):
        truncate_logits(LOGITS, **settings)
