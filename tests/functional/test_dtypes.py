"""Every function's precision is that of its inputs, whatever torch's default is.

A trainer at `precision="bf16-true"` makes bfloat16 the default dtype during its steps: a number that a
function makes without naming a dtype would then be rounded to 8 bits.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from lgym import functional as F


def numbers(dtype: torch.dtype, *, seed: int = 0, shape: tuple[int, ...] = (3, 5)) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def logprobs(dtype: torch.dtype, *, seed: int = 0) -> Tensor:
    return numbers(dtype, seed=seed).log_softmax(-1)


MASK = torch.arange(15).view(3, 5) % 4 != 0
IDS = torch.arange(15).view(3, 5)
CLIP = {"clip_low": 0.2, "clip_high": 0.3}

CALLS: dict[str, Callable[[torch.dtype], Tensor | tuple[Tensor, ...]]] = {
    "action_information": lambda d: F.action_information(logprobs(d), IDS % 4, torch.tensor([1, 5, 3])),
    "candidate_logprobs": lambda d: F.candidate_logprobs(numbers(d), IDS + 1, MASK, temperature=0.7),
    "categorical_entropy": lambda d: F.categorical_entropy(logprobs(d)),
    "categorical_kl": lambda d: F.categorical_kl(logprobs(d), logprobs(d, seed=1)),
    "clip_fraction": lambda d: F.clip_fraction(logprobs(d), logprobs(d, seed=1), **CLIP),
    "clipped_value_loss": lambda d: F.clipped_value_loss(
        numbers(d), numbers(d, seed=1), numbers(d, seed=2), clip=0.3
    ),
    "count_novelty": lambda d: F.count_novelty(numbers(d).abs()),
    "distillation_loss": lambda d: F.distillation_loss(logprobs(d), logprobs(d, seed=1)),
    "discounted_returns": lambda d: F.discounted_returns(
        numbers(d), numbers(d, seed=1), ~MASK, MASK, gamma=0.99
    ),
    "expected_value": lambda d: F.expected_value(logprobs(d), numbers(d)),
    "expectile_loss": lambda d: F.expectile_loss(numbers(d), expectile=0.7),
    "explained_variance": lambda d: F.explained_variance(numbers(d), numbers(d, seed=1), MASK),
    "gae": lambda d: F.gae(
        numbers(d), numbers(d, seed=1), numbers(d, seed=2), ~MASK, ~MASK, gamma=0.99, gae_lambda=0.95
    ),
    "group_advantages": lambda d: F.group_advantages(
        numbers(d, shape=(15,)), IDS.flatten() % 4, scale_by_std=True
    ),
    "kl_estimate": lambda d: F.kl_estimate(logprobs(d), logprobs(d, seed=1), estimator="k3"),
    "kl_k1": lambda d: F.kl_k1(logprobs(d), logprobs(d, seed=1)),
    "kl_k2": lambda d: F.kl_k2(logprobs(d), logprobs(d, seed=1)),
    "kl_k3": lambda d: F.kl_k3(logprobs(d), logprobs(d, seed=1)),
    "leave_one_out_advantages": lambda d: F.leave_one_out_advantages(
        numbers(d, shape=(15,)), IDS.flatten() % 4
    ),
    "mean_by_pair": lambda d: F.mean_by_pair(
        numbers(d, shape=(3, 5)), IDS[0] % 3, IDS[0] % 5, numbers(d, shape=tuple(IDS[0].shape))
    ),
    "masked_deviations": lambda d: F.masked_deviations(numbers(d), MASK),
    "masked_mean": lambda d: F.masked_mean(
        numbers(d, shape=(1001,)), torch.arange(1001) % 2 == 0
    ),  # 501 is no bfloat16
    "split_half_reliability": lambda d: F.split_half_reliability(
        numbers(d, shape=(64,)), torch.arange(64) % 4, torch.arange(64) // 4 % 2, torch.arange(64) // 8 % 2
    ),
    "bootstrap_interval": lambda d: torch.tensor(F.bootstrap_interval(numbers(d, shape=(15,))), dtype=d),
    "interquartile_mean": lambda d: F.interquartile_mean(numbers(d)),
    "mean_margin": lambda d: F.mean_margin(numbers(d).abs(), 7),
    "wilson_margin": lambda d: F.wilson_margin(numbers(d).sigmoid(), torch.tensor(7)),
    "prior_action_values": lambda d: F.prior_action_values(
        logprobs(d), numbers(d, shape=logprobs(d).shape[:-1]), scale=0.3
    ),
    "double_q_targets": lambda d: F.double_q_targets(
        numbers(d, shape=(3,)), numbers(d, shape=(3,)), numbers(d, shape=(3, 5)), numbers(d, shape=(3, 5))
    ),
    "graph_backup": lambda d: F.graph_backup(
        IDS.flatten() % 4,
        IDS.flatten() % 2,
        numbers(d, shape=(15,)),
        numbers(d, shape=(15,)).sigmoid(),
        (IDS.flatten() + 1) % 5,
        numbers(d, shape=(15,), seed=1),
    ),
    "conservative_penalty": lambda d: F.conservative_penalty(numbers(d), torch.zeros(3, dtype=torch.int64)),
    "huber_loss": lambda d: F.huber_loss(numbers(d), numbers(d, seed=1), delta=0.5),
    "n_step_returns": lambda d: F.n_step_returns(numbers(d), ~MASK, ~MASK, gamma=0.9, n=3)[0],
    "ppo_clip_loss": lambda d: F.ppo_clip_loss(logprobs(d), logprobs(d, seed=1), numbers(d, seed=2), **CLIP),
    "state_advantages": lambda d: F.state_advantages(
        numbers(d, shape=(15,)), IDS.flatten() % 3, IDS.flatten() % 2, scale_by_std=True
    ),
    "surrogate_loss": lambda d: F.surrogate_loss(logprobs(d), logprobs(d, seed=1), numbers(d, seed=2)),
    "truncate_logits": lambda d: F.truncate_logits(numbers(d), top_k=4, top_p=0.8),
    "value_loss": lambda d: F.value_loss(numbers(d), numbers(d, seed=1)),
    "value_offset": lambda d: F.value_offset(
        *(numbers(d, seed=seed, shape=(15,)) for seed in range(3)), ~MASK.flatten(), gamma=0.99, horizon=5
    ),
    "variance_within_and_across": lambda d: F.variance_within_and_across(
        numbers(d, shape=(15,)), IDS.flatten() % 4
    ),
    "whiten": lambda d: F.whiten(numbers(d), MASK),
}


def outputs(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    result = CALLS[name](dtype)
    return result if isinstance(result, tuple) else (result,)


@pytest.fixture
def bfloat16_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


def test_every_function_is_called_here():
    """Catches a new function that this file forgets."""
    assert sorted(CALLS) == sorted(F.__all__)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CALLS)
def test_default_dtype_changes_nothing(name: str, dtype: torch.dtype, request: pytest.FixtureRequest):
    """Catches a constant, a mask or a count that takes the default dtype on its way into the result."""
    expected = outputs(name, dtype)
    request.getfixturevalue("bfloat16_default")
    for result, wanted in zip(outputs(name, dtype), expected, strict=True):
        assert result.dtype == wanted.dtype == dtype
        assert torch.equal(result, wanted)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"clip_fraction"}))  # which only knows 0 and 1
def test_float64_is_computed_in_float64(name: str):
    """Catches a detour through float32, which would fail every check of gradients by finite differences."""
    for exact, rounded in zip(outputs(name, torch.float64), outputs(name, torch.float32), strict=True):
        torch.testing.assert_close(exact.float(), rounded, rtol=1e-4, atol=1e-5)
        assert not torch.equal(exact, exact.float().double())


@pytest.mark.usefixtures("bfloat16_default")
def test_whole_numbers_are_raised_to_float32():
    """Catches integers, such as rewards that count points, that become bfloat16 by way of the default
    dtype."""
    ones, no = torch.ones(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.bool)
    results = [
        F.masked_mean(ones, ~no),
        F.whiten(ones),
        F.discounted_returns(ones, ones, no, no, gamma=0.99),
        *F.gae(ones, ones, ones, no, no, gamma=0.99, gae_lambda=0.95),
        *F.gae(ones, ones, ones, no, no, gamma=ones, gae_lambda=0.95),
        F.group_advantages(ones[0], ones[0], scale_by_std=True),
        F.leave_one_out_advantages(ones[0], ones[0]),
        F.state_advantages(ones[0], ones[0], ones[0], scale_by_std=True),
    ]
    assert [result.dtype for result in results] == [torch.float32] * 10
