"""Divergences between small distributions whose every probability is known, so that means are exact."""

from math import log

import pytest
import torch
from torch import Tensor

from lgym.functional import categorical_entropy, categorical_kl, kl_estimate, kl_k1, kl_k2, kl_k3

INF = torch.inf


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


P, Q = vector(1 / 2, 1 / 2), vector(1 / 4, 3 / 4)
KL_P_Q = log(4 / 3) / 2  # 1/2 log 2 + 1/2 log (2/3) = 1/2 log (4/3) = 0.1438...
KL_Q_P = log(27 / 16) / 4  # 1/4 log (1/2) + 3/4 log (3/2) = 1/4 log (1/2 * 27/8) = 0.1308...


def gradient_by_logits(of, logits: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    of(logits.log_softmax(-1)).backward()
    assert logits.grad is not None
    return logits.grad


def test_kl_by_hand():
    """Catches the two directions swapped: they differ here."""
    torch.testing.assert_close(
        categorical_kl(torch.stack([P, Q]).log(), torch.stack([Q, P]).log()), vector(KL_P_Q, KL_Q_P)
    )


def test_kl_to_itself_is_zero():
    """Catches a term that is not a difference of logs."""
    assert categorical_kl(Q.log(), Q.log()).item() == 0.0


def test_kl_with_padding():
    """Catches -inf minus -inf and 0 times inf, in rows that are partly and wholly padding."""
    p = torch.tensor([[1 / 2, 1 / 2, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.float64).log()
    q = torch.tensor([[1 / 4, 3 / 4, 0], [1 / 4, 3 / 4, 0], [0, 0, 0]], dtype=torch.float64).log()
    torch.testing.assert_close(categorical_kl(p, q), vector(KL_P_Q, log(4), 0))  # 1 * log (1 / (1/4))


def test_kl_to_what_is_forbidden_is_infinite():
    """Catches padding handled so broadly that a policy may do what its reference never does, free of
    charge."""
    assert categorical_kl(P.log(), vector(1, 0).log()).item() == INF


def test_gradients_with_padding_are_finite_and_right():
    """Catches NaN gradient from padded candidates, in KL (both arguments) and entropy, and gradient that is
    wrong."""
    mask = torch.tensor([True, True, True, False])
    reference = vector(0.2, 0.5, 0.3, 0).log()

    def padded(logits: Tensor) -> Tensor:
        return logits.masked_fill(~mask, -1e300).log_softmax(-1).masked_fill(~mask, -INF)

    logits = vector(0.1, -0.4, 0.8, 0.0).requires_grad_()
    for function in (
        lambda x: categorical_kl(padded(x), reference),
        lambda x: categorical_kl(reference, padded(x)),
        lambda x: categorical_entropy(padded(x)),
    ):
        assert torch.autograd.gradcheck(function, (logits,))


def test_gradient_reaching_the_padding_itself_is_zero():
    """Catches NaN handed to what made the -inf, where the layer below has no mask of its own."""
    for function in (lambda x: categorical_kl(x, x.detach()), categorical_entropy):
        logprobs = vector(1 / 4, 3 / 4, 0).log().requires_grad_()
        function(logprobs).backward()
        assert logprobs.grad is not None
        assert logprobs.grad.isfinite().all()
        assert logprobs.grad[2] == 0


def test_entropy_by_hand():
    """Catches a wrong sign or base, and padding that is counted as a choice."""
    logprobs = torch.tensor(
        [[1 / 2, 1 / 2, 0, 0], [1 / 4] * 4, [0, 1, 0, 0], [0] * 4], dtype=torch.float64
    ).log()
    torch.testing.assert_close(categorical_entropy(logprobs), vector(log(2), log(4), 0, 0))


def test_raising_the_entropy_flattens():
    """Catches a gradient that sharpens: the less likely logit must rise."""
    gradient = gradient_by_logits(categorical_entropy, vector(0, 1))
    assert gradient[0] > 0 > gradient[1]


def test_estimators_by_hand():
    """Catches the two policies swapped, and k2 without its half."""
    logprobs, ref = vector(log(1 / 2)), vector(log(1 / 4))
    torch.testing.assert_close(kl_k1(logprobs, ref), vector(log(2)))
    torch.testing.assert_close(kl_k2(logprobs, ref), vector(log(2) ** 2 / 2))
    # d = log (1/2): exp(d) - d - 1 = 1/2 + log 2 - 1
    torch.testing.assert_close(kl_k3(logprobs, ref), vector(log(2) - 1 / 2))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("k1", log(2)), ("k2", log(2) ** 2 / 2), ("k3", log(2) - 1 / 2)],  # of d = log (1/2), as above
)
def test_an_estimator_by_its_name(estimator, expected):
    """Catches a name that stands for another estimator, and the two policies swapped on the way."""
    torch.testing.assert_close(
        kl_estimate(vector(log(1 / 2)), vector(log(1 / 4)), estimator=estimator), vector(expected)
    )


@pytest.mark.parametrize("estimator", ["k4", "K3", "kl_k3", ""])
def test_an_estimator_by_another_name(estimator):
    """Catches a misspelt name that chooses in silence."""
    with pytest.raises(ValueError, match=f"estimator must be k1, k2 or k3, got '{estimator}'"):
        kl_estimate(P.log(), Q.log(), estimator=estimator)


def test_mean_of_the_estimators_is_the_exact_kl():
    """Catches an estimator of the other direction; the mean over samples of p is here a sum over p."""
    for p, q, exact in ((P, Q, KL_P_Q), (Q, P, KL_Q_P)):
        assert (p * kl_k1(p.log(), q.log())).sum().item() == pytest.approx(exact, abs=1e-12)
        assert (p * kl_k3(p.log(), q.log())).sum().item() == pytest.approx(exact, abs=1e-12)
    # k2 is biased: 1/2 * (log² 2 + log² (2/3)) / 2 = 0.16121...
    assert (P * kl_k2(P.log(), Q.log())).sum().item() == pytest.approx(0.161214, abs=1e-6)


def test_k2_and_k3_are_never_negative():
    """Catches a k3 that rounds below 0 where the policies almost agree: float32, differences around 1e-4."""
    logprobs = torch.linspace(-5, 0, 1001, dtype=torch.float32)
    ref = logprobs + 1e-4 * torch.randn(1001, generator=torch.Generator().manual_seed(0))
    assert (kl_k2(logprobs, ref) >= 0).all()
    assert (kl_k3(logprobs, ref) >= 0).all()
    assert (kl_k1(logprobs, ref) < 0).any()


def test_k3_keeps_its_digits_where_the_policies_almost_agree():
    """Catches exp(d) - 1 - d, whose rounding in float32 is a tenth of the value here."""
    d = 1.3e-3
    value = kl_k3(torch.zeros(1, dtype=torch.float32), torch.full((1,), d, dtype=torch.float32))
    assert value.item() == pytest.approx(d**2 / 2 + d**3 / 6, rel=1e-3)


def test_mean_gradient_of_each_estimator_on_its_own_samples():
    """Catches a docstring that promises the wrong direction: k1 none, k2 of KL(π || ref), k3 of KL(ref ||
    π)."""
    logits, ref = vector(0.2, -0.5, 1.0), vector(0.3, 0.3, 0.4).log()
    samples = logits.softmax(-1)  # fixed: what was sampled does not move with the policy
    expected = {
        kl_k1: torch.zeros_like(logits),
        kl_k2: gradient_by_logits(lambda lp: categorical_kl(lp, ref), logits),
        kl_k3: gradient_by_logits(lambda lp: categorical_kl(ref, lp), logits),
    }
    for estimator, gradient in expected.items():
        mean = gradient_by_logits(lambda lp, f=estimator: (samples * f(lp, ref)).sum(), logits)
        torch.testing.assert_close(mean, gradient, rtol=1e-10, atol=1e-12)


def test_refuses_what_does_not_fit():
    """Catches a reference that would broadcast."""
    for function in (categorical_kl, kl_k1, kl_k2, kl_k3):
        with pytest.raises(ValueError, match=r"logprobs \[2, 3\], (ref|q)_logprobs \[3\]"):
            function(torch.zeros(2, 3), torch.zeros(3))
    for estimator in ("k1", "k2", "k3"):
        with pytest.raises(ValueError, match=r"logprobs \[2, 3\], ref_logprobs \[3\]"):
            kl_estimate(torch.zeros(2, 3), torch.zeros(3), estimator=estimator)
