"""The value head's normalization of returns, by hand."""

from __future__ import annotations

import pytest
import torch

from helpers.rollouts import candidate_learner, text_learner
from lgym.models.value_head import ValueHead
from lgym.modules import PPO
from lgym.modules.snapshot import put_back, snapshot

STATISTICS = ("mean", "std", "updates")


def head_of(*rollouts: list[float], noise: float = 0.0) -> ValueHead:
    """A head after the returns of these rollouts, with random output weights of the size `noise`."""
    torch.manual_seed(0)
    head = ValueHead(8, 4)
    with torch.no_grad():
        head.output.weight.normal_(std=noise)
        head.output.bias.fill_(noise)
    for returns in rollouts:
        head.update_statistics(torch.tensor(returns))
    return head


def hidden_states() -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


def test_new_statistics_change_no_value():
    """Catches a mean or a standard deviation that moves without the output layer: every value would jump."""
    head = head_of([1.0, 5.0], noise=0.3)
    before = head(hidden_states())
    assert float(before.detach().std()) > 0.01
    head.update_statistics(torch.tensor([100.0, 900.0]))
    assert float(head.mean) > 200
    torch.testing.assert_close(head(hidden_states()), before, rtol=1e-4, atol=1e-4)


def test_values_start_at_the_mean_of_the_first_returns():
    """Catches first returns that are mixed with the mean 0 and the standard deviation 1 that stand for
    nothing."""
    head = head_of()
    assert head(hidden_states()).tolist() == [0.0] * 5
    head.update_statistics(torch.tensor([1.0, 5.0]))  # 3 and ((1 + 25) / 2 - 9)^0.5
    assert (float(head.mean), float(head.std), int(head.updates)) == (3.0, 2.0, 1)
    assert head(hidden_states()).tolist() == [3.0] * 5


def test_old_returns_are_forgotten_by_half():
    """Catches a mean over all rollouts, or one of standard deviations in place of squares: after 1, 5 and 4,
    8 the mean is (3 + 6) / 2, that of the squares (13 + 40) / 2, so the variance 26.5 - 20.25."""
    head = head_of([1.0, 5.0], [4.0, 8.0], noise=0.1)
    assert (float(head.mean), float(head.std)) == (4.5, 2.5)
    head.update_statistics(torch.tensor([4.0, 5.0]))  # (26.5 + 20.5) / 2 - 4.5^2 = 3.25
    assert (float(head.mean), float(head.std)) == (4.5, pytest.approx(3.25**0.5))


def test_a_head_that_has_learned_nothing_forgets_all():
    """Catches values that begin at the level of rollouts before the demonstrations were learned: the first
    gradient steps would move all of them at once, and no step of a few is left to tell prompts apart."""
    head = head_of([-9.0, -5.0], [-8.0, -4.0], [1.0, 5.0])
    assert (float(head.mean), float(head.std)) == (3.0, 2.0)
    assert head(hidden_states()).tolist() == [3.0] * 5


@pytest.mark.parametrize(("returns", "std"), [(0.0, 1.0), (7.0, 1.0), (-3000.0, 3.0)])
def test_equal_returns_keep_the_standard_deviation(returns, std):
    """Catches one that falls to 0 where nothing is ever paid: it did by half of its square in each rollout. It
    is never below a thousandth of the mean, which is rounding."""
    head = head_of(*[[returns] * 3] * 5, noise=0.1)
    assert (float(head.mean), float(head.std)) == (returns, pytest.approx(std))
    assert head(hidden_states()).isfinite().all()


def test_returns_next_to_nothing_for_ever():
    """Catches a division by 0 after 300 rollouts of returns that are almost 0, as those of a goal that is
    never found."""
    head = head_of([0.0, 1.0], noise=0.1)
    for _ in range(400):
        head.update_statistics(torch.tensor([0.0, 1e-30]))
    assert float(head.std) == pytest.approx(1e-8)
    head.update_statistics(torch.tensor([0.0, 2.0]))  # (0 + 2) / 2 - (1 / 2)^2 = 0.75
    assert float(head.std) == pytest.approx(0.75**0.5)
    assert head(hidden_states()).isfinite().all()


def test_values_are_in_fp32_whatever_the_hidden_states_are():
    """Catches statistics that are applied in bf16, which has three digits: 1000.5 would be 1000."""
    head = head_of([1000.0, 1001.0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = head(hidden_states().bfloat16())
    assert values.dtype == torch.float32
    assert values.tolist() == [1000.5] * 5


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_returns_of_any_size_are_learned_alike(factor):
    """Catches a learning rate that means another step for larger rewards: two rollouts of gradient steps end
    with the same outputs."""
    results = []
    for size in (1.0, factor):
        head = head_of()
        optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
        for offset in (0.0, 2.0):
            returns = size * (torch.arange(5.0) + offset)
            head.update_statistics(returns)
            for _ in range(20):
                optimizer.zero_grad()
                ((head(hidden_states()) - returns) / head.std).square().mean().backward()
                optimizer.step()
        results.append(head(hidden_states()).detach() / size)
    assert float(results[0].std()) > 0.1
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-3)


def statistics_of(module) -> list[torch.Tensor]:
    return [getattr(module.policy.llm.value_head, name).clone() for name in STATISTICS]


@pytest.mark.parametrize("make", [candidate_learner, lambda: text_learner(PPO)], ids=["candidates", "text"])
def test_statistics_are_in_the_checkpoint_bit_for_bit(tmp_path, make):
    """Catches buffers left out with the frozen model: a resumed run would take its values for normalized
    ones."""
    module, other = make(), make()
    for returns in ([1.0, 2.0, 4.0], [0.3, 0.7]):
        module.policy.llm.value_head.update_statistics(torch.tensor(returns))
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "some.ckpt")
    loaded = torch.load(tmp_path / "some.ckpt", weights_only=True)
    other.on_load_checkpoint(loaded)
    other.load_state_dict(loaded["state_dict"], strict=False)
    assert all(map(torch.equal, statistics_of(other), statistics_of(module)))
    assert int(other.policy.llm.value_head.updates) == 2
    assert not any("embed" in name for name in loaded["state_dict"])  # the frozen model stays out


def test_going_back_takes_the_statistics_back():
    """Catches a rollback of weights alone: values would be those of old weights on a new scale."""
    module = candidate_learner()
    head = module.policy.llm.value_head
    head.update_statistics(torch.tensor([1.0, 2.0, 4.0]))
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    saved, before = snapshot(module, [optimizer]), statistics_of(module)
    head.update_statistics(torch.tensor([50.0, 90.0]))
    assert not torch.equal(statistics_of(module)[0], before[0])
    put_back(module, [optimizer], saved)
    assert all(map(torch.equal, statistics_of(module), before))
    head.update_statistics(torch.tensor([50.0, 90.0]))  # the snapshot is not touched by what follows
    put_back(module, [optimizer], saved)
    assert all(map(torch.equal, statistics_of(module), before))
