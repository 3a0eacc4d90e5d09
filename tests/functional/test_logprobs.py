"""Log-probabilities of candidates."""

from math import log

import pytest
import torch
from torch import Tensor

from lgym.functional import candidate_logprobs

INF, NAN = torch.inf, torch.nan


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_candidates_by_hand():
    """Catches a temperature or a length that multiplies where it should divide."""
    scores, lengths, mask = vector(log(8), log(16)), torch.tensor([1, 2]), torch.tensor([True, True])
    # a token: log 8 and (log 16) / 2 = log 4: probabilities 8/12 and 4/12
    torch.testing.assert_close(candidate_logprobs(scores, lengths, mask), vector(2 / 3, 1 / 3).log())
    # the sums: 8/24 and 16/24
    ones = torch.ones_like(lengths)
    torch.testing.assert_close(candidate_logprobs(scores, ones, mask), vector(1 / 3, 2 / 3).log())
    # at temperature 1/2, 8² and 4²: 64/80 and 16/80
    torch.testing.assert_close(
        candidate_logprobs(scores, lengths, mask, temperature=0.5), vector(4 / 5, 1 / 5).log()
    )


def test_padding_is_not_a_candidate():
    """Catches padding that takes probability away, or whose contents reach the result."""
    mask = torch.tensor([True, False, True, False])
    expected = vector(1 / 4, 0, 3 / 4, 0).log()
    for filling in (0.0, 1e30, -INF, INF, NAN):
        scores = vector(log(1), filling, log(3), filling)
        torch.testing.assert_close(candidate_logprobs(scores, torch.tensor([1, 0, 1, 0]), mask), expected)


def test_unlikely_candidates_are_told_from_padding():
    """Catches a finite stand-in for -inf that a very unlikely candidate could reach."""
    logprobs = candidate_logprobs(vector(-2e4, -2e4 - 1, 0), torch.ones(3), torch.tensor([True, True, False]))
    # 1 / (1 + 1/e) = 0.731058578...
    torch.testing.assert_close(logprobs.exp(), vector(0.7310585786300049, 0.2689414213699951, 0))


def test_gradient_is_finite_and_stays_with_the_candidates():
    """Catches NaN that padded candidates, or turns without any, send back through the softmax."""
    scores = torch.tensor(
        [[0.3, -1.0, -INF, NAN], [NAN, -INF, 0.0, INF]], dtype=torch.float64, requires_grad=True
    )
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    logprobs = candidate_logprobs(scores, torch.tensor([[1, 2, 0, 0], [0] * 4]), mask)
    assert logprobs[1].tolist() == [-INF] * 4
    with torch.autograd.set_detect_anomaly(True):  # which refuses a NaN anywhere on the way back
        (logprobs.exp() * torch.arange(8).view(2, 4)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert (scores.grad != 0).tolist() == mask.tolist()


def test_gradient_agrees_with_finite_differences():
    """Catches a gradient that is finite but wrong: the chosen candidate's log-probability, padding beside
    it."""
    lengths, mask = torch.tensor([2, 3, 0, 1]), torch.tensor([True, True, False, True])

    def chosen(scores: Tensor) -> Tensor:
        return candidate_logprobs(scores, lengths, mask, temperature=0.7)[mask]

    assert torch.autograd.gradcheck(chosen, (vector(-1.0, -2.5, 0.0, -0.3).requires_grad_(),))


def test_one_candidate_is_certain():
    """Catches a policy that is unsure where it has no choice."""
    assert candidate_logprobs(vector(-9, 0), torch.tensor([3, 0]), torch.tensor([True, False])).tolist() == [
        0.0,
        -INF,
    ]


def test_candidate_logprobs_refuse_what_does_not_fit():
    """Catches a temperature of 0, a mask of numbers and lengths of another shape."""
    scores, mask = vector(1, 2), torch.tensor([True, True])
    with pytest.raises(ValueError, match=r"scores \[2\], lengths \[1\], mask \[2\]"):
        candidate_logprobs(scores, torch.ones(1), mask)
    with pytest.raises(ValueError, match="mask must be a bool tensor, got torch.float32"):
        candidate_logprobs(scores, torch.ones(2), torch.ones(2))
    for temperature in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match="temperature must be above 0"):
            candidate_logprobs(scores, torch.ones(2), mask, temperature=temperature)
