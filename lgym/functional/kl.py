"""Kullback-Leibler divergence, exact and estimated from samples, and entropy."""

from typing import Literal

from torch import Tensor

from lgym.functional.inputs import require_same_shape


def categorical_kl(p_logprobs: Tensor, q_logprobs: Tensor) -> Tensor:
    """Kullback-Leibler divergence KL(p || q) of two categorical distributions, over the last axis.

    Σ_c p_c (log p_c - log q_c), with 0 log 0 = 0.

    "Elements of Information Theory", Cover & Thomas 2006, section 2.3.

    An entry that is -inf in p adds 0 with zero gradient; a row that is all -inf (padding) is 0. An entry that
    is -inf in q alone makes the divergence inf: q forbids what p does.

    Args:
        p_logprobs: [..., C], normalized, -inf for what cannot be chosen.
        q_logprobs: [..., C], likewise.

    Returns:
        [...], in nats.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(p_logprobs=p_logprobs, q_logprobs=q_logprobs)
    log_ratio = (p_logprobs - q_logprobs).masked_fill(p_logprobs.isneginf(), 0.0)
    return (p_logprobs.exp() * log_ratio).sum(-1)


def categorical_entropy(logprobs: Tensor) -> Tensor:
    """Entropy of a categorical distribution, over the last axis.

    -Σ_c p_c log p_c, with 0 log 0 = 0.

    "Elements of Information Theory", Cover & Thomas 2006, section 2.1.

    An entry of -inf adds 0 with zero gradient; one candidate, or a row that is all -inf, has entropy 0.

    Args:
        logprobs: [..., C], normalized, -inf for what cannot be chosen.

    Returns:
        [...], in nats: at most log C.
    """
    return -(logprobs.exp() * logprobs.masked_fill(logprobs.isneginf(), 0.0)).sum(-1)


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """One-sample estimate k1 of KL(π || ref): unbiased, of either sign.

    log π - log ref, of samples from π.

    "Approximating KL Divergence", Schulman 2020, http://joschu.net/blog/kl-approx.html, k1.

    For rewards and metrics. As a loss it teaches nothing: on its own samples its mean gradient is 0 ("On a
    few pitfalls in KL divergence gradient estimation for RL", Tang & Munos 2025, arXiv:2506.09477).

    Args:
        logprobs: [...], of samples from π.
        ref_logprobs: [...], of the same samples under the reference.

    Returns:
        [...], in nats; 0 where the two agree.

    Raises:
        ValueError: if the shapes differ.
    """
    require_same_shape(logprobs=logprobs, ref_logprobs=ref_logprobs)
    return logprobs - ref_logprobs


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """One-sample estimate k2 of KL(π || ref): a small bias, never negative.

    (log π - log ref)² / 2, of samples from π. Source as for `kl_k1`.

    As a loss on its own samples its mean gradient is that of KL(π || ref).

    Args:
        logprobs: log π of samples from π, [...].
        ref_logprobs: log ref of the same samples, [...].

    Returns:
        [...], in nats; 0 where the two agree.

    Raises:
        ValueError: if the shapes differ.
    """
    return kl_k1(logprobs, ref_logprobs).square() / 2


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """One-sample estimate k3 of KL(π || ref): unbiased and never negative.

    exp(d) - d - 1 with d = log ref - log π, of samples from π. Source as for `kl_k1`; also equation 4 of
    GRPO, arXiv:2402.03300.

    As a loss on its own samples its mean gradient is that of the other direction, KL(ref || π).

    Args:
        logprobs: log-probabilities of samples from π, [...].
        ref_logprobs: [...], of the same samples under the reference.

    Returns:
        [...], in nats; 0 where the two agree.

    Raises:
        ValueError: if the shapes differ.
    """
    log_ratio = -kl_k1(logprobs, ref_logprobs)
    return log_ratio.expm1() - log_ratio


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, *, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """One-sample estimate of KL(π || ref), by the estimator of that name.

    Args:
        logprobs: [...], of samples from π.
        ref_logprobs: [...], of the same samples under the reference.
        estimator: `kl_k1`, `kl_k2` or `kl_k3`, which tell the source and the gradient of each.

    Returns:
        [...], in nats; 0 where the two agree.

    Raises:
        ValueError: if the shapes differ or `estimator` is none of the three.
    """
    estimators = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
    if estimator not in estimators:
        raise ValueError(f"estimator must be k1, k2 or k3, got {estimator!r}")
    return estimators[estimator](logprobs, ref_logprobs)
