"""Log-probabilities of tokens and of candidates."""

from math import log

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lgym.functional import candidate_logprobs, token_logprobs

INF, NAN = torch.inf, torch.nan


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_each_token_is_predicted_by_the_one_before():
    """Catches the shift by one made twice, not at all, or the wrong way."""
    # Probabilities, as logits: after token 0: 1/4 3/4; after token 1: 1/5 4/5; after token 2: not read.
    logits = torch.tensor([[[1.0, 3.0], [1.0, 4.0], [1.0, 9.0]]], dtype=torch.float64).log()
    logprobs = token_logprobs(logits, torch.tensor([[0, 1, 0]]))
    torch.testing.assert_close(logprobs, vector(0, log(3 / 4), log(1 / 5))[None])


def test_agrees_with_the_cross_entropy_of_each_sequence():
    """Catches a gather along the wrong axis or across sequences."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 7, generator=generator)
    token_ids = torch.randint(7, (3, 5), generator=generator)
    logprobs = token_logprobs(logits, token_ids)
    for b in range(3):
        expected = -cross_entropy(logits[b, :-1], token_ids[b, 1:], reduction="none")
        torch.testing.assert_close(logprobs[b, 1:], expected)
        assert logprobs[b, 0] == 0


def test_gradient_raises_the_token_that_was_chosen():
    """Catches a wrong sign, and gradient to logits that predict nothing here."""
    logits = torch.zeros(1, 3, 2, dtype=torch.float64, requires_grad=True)
    token_logprobs(logits, torch.tensor([[0, 1, 0]])).sum().backward()
    assert logits.grad is not None
    # one-hot minus softmax: (0, 1) - (1/2, 1/2);  (1, 0) - (1/2, 1/2);  the last predicts no token
    assert logits.grad.tolist() == [[[-0.5, 0.5], [0.5, -0.5], [0.0, 0.0]]]


def test_one_token_is_predicted_by_nothing():
    """Catches an empty result where T is 1."""
    assert token_logprobs(torch.randn(2, 1, 5), torch.tensor([[3], [4]])).tolist() == [[0.0], [0.0]]


def test_half_precision_logits_are_raised_before_the_softmax():
    """Catches a softmax in bfloat16, whose log-probabilities carry errors of up to a few per cent."""
    logits = torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    token_ids = torch.arange(8).view(2, 4)
    logprobs = token_logprobs(logits, token_ids)
    assert logprobs.dtype == torch.float32
    assert torch.equal(logprobs, token_logprobs(logits.float(), token_ids))


def test_token_logprobs_refuse_what_does_not_fit():
    """Catches token ids that are already shifted, and a batch that was dropped."""
    logits = torch.zeros(2, 4, 5)
    with pytest.raises(ValueError, match=r"got token_ids \[2, 3\], logits \[2, 4, 5\]"):
        token_logprobs(logits, torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"3 dimensions, got shape \[4, 5\]"):
        token_logprobs(logits[0], torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="T >= 1"):
        token_logprobs(logits[:, :0], torch.zeros(2, 0, dtype=torch.long))


def test_candidates_by_hand():
    """Catches a temperature or a length that multiplies where it should divide."""
    scores, lengths, mask = vector(log(8), log(16)), torch.tensor([1, 2]), torch.tensor([True, True])
    # a token: log 8 and (log 16) / 2 = log 4: probabilities 8/12 and 4/12
    torch.testing.assert_close(candidate_logprobs(scores, lengths, mask), vector(2 / 3, 1 / 3).log())
    # the sums: 8/24 and 16/24
    ones = torch.ones_like(lengths)
    torch.testing.assert_close(candidate_logprobs(scores, ones, mask), vector(1 / 3, 2 / 3).log())
    # at temperature 1/2, 8² and 4²: 64/80 and 16/80
    torch.testing.assert_close(candidate_logprobs(scores, lengths, mask, temperature=0.5), vector(4 / 5, 1 / 5).log())


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
    scores = torch.tensor([[0.3, -1.0, -INF, NAN], [NAN, -INF, 0.0, INF]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    logprobs = candidate_logprobs(scores, torch.tensor([[1, 2, 0, 0], [0] * 4]), mask)
    assert logprobs[1].tolist() == [-INF] * 4
    with torch.autograd.set_detect_anomaly(True):  # which refuses a NaN anywhere on the way back
        (logprobs.exp() * torch.arange(8).view(2, 4)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert (scores.grad != 0).tolist() == mask.tolist()


def test_gradient_agrees_with_finite_differences():
    """Catches a gradient that is finite but wrong: the chosen candidate's log-probability, padding beside it."""
    lengths, mask = torch.tensor([2, 3, 0, 1]), torch.tensor([True, True, False, True])

    def chosen(scores: Tensor) -> Tensor:
        return candidate_logprobs(scores, lengths, mask, temperature=0.7)[mask]

    assert torch.autograd.gradcheck(chosen, (vector(-1.0, -2.5, 0.0, -0.3).requires_grad_(),))


def test_one_candidate_is_certain():
    """Catches a policy that is unsure where it has no choice."""
    assert candidate_logprobs(vector(-9, 0), torch.tensor([3, 0]), torch.tensor([True, False])).tolist() == [0.0, -INF]


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
