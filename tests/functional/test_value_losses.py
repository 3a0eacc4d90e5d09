"""The value's loss, plain and clipped."""

import pytest
import torch
from torch import Tensor

from lgym.functional import clipped_value_loss, value_loss


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_value_loss_by_hand():
    """Catches a lost half and a reduction: (1 - 4)² / 2 = 4.5;  0;  (5 - 4)² / 2 = 0.5."""
    assert value_loss(vector(1, 4, 5), vector(4, 4, 4)).tolist() == [4.5, 0.0, 0.5]


def test_gradient_is_the_error():
    """Catches a value that is pushed away from its return: the gradient is v - R, and 0 where it is right."""
    values = vector(1, 4, 5).requires_grad_()
    value_loss(values, vector(4, 4, 4)).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [-3.0, 0.0, 1.0]


def clipped(values: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Loss and gradient from an old value of 0 and a return of 4."""
    values = values.clone().requires_grad_()
    loss = clipped_value_loss(values, torch.zeros_like(values), torch.full_like(values, 4.0), clip=clip)
    loss.sum().backward()
    assert values.grad is not None
    return loss.detach(), values.grad


def test_clipped_value_loss_by_hand():
    """Catches a minimum for the maximum, and a clip around the return instead of around the old value."""
    loss, gradient = clipped(vector(0.5, 2, -2, 9), clip=1.0)
    #   v   clipped   (v-4)²/2   (clipped-4)²/2   maximum
    #  0.5    0.5      6.125        6.125          6.125   not clipped: gradient v - 4
    #   2      1       2            4.5            4.5     too far, the right way: no gradient
    #  -2     -1      18           12.5           18       too far, the wrong way: gradient v - 4
    #   9      1      12.5          4.5           12.5     too far, past the return: gradient v - 4
    torch.testing.assert_close(loss, vector(6.125, 4.5, 18, 12.5))
    torch.testing.assert_close(gradient, vector(-3.5, 0, -6, 5))


def test_without_clipping_it_is_the_plain_loss():
    """Catches a clip that cannot be switched off."""
    loss, _ = clipped(vector(0.5, 3.5, -2, 9), clip=torch.inf)
    assert torch.equal(loss, value_loss(vector(0.5, 3.5, -2, 9), vector(4, 4, 4, 4)))


def test_where_the_value_has_not_moved_the_gradient_is_whole():
    """Catches a gradient lost or halved at the first step, where both terms are equal."""
    _, gradient = clipped(vector(0), clip=0.2)
    assert gradient.tolist() == [-4.0]


def test_refuses_what_does_not_fit():
    """Catches [B, 1] values against [B] returns, which would broadcast to [B, B], and a clip below 0."""
    x = torch.zeros(3)
    with pytest.raises(ValueError, match=r"values \[3, 1\], returns \[3\]"):
        value_loss(x[:, None], x)
    with pytest.raises(ValueError, match=r"values \[3\], old_values \[3, 1\], returns \[3\]"):
        clipped_value_loss(x, x[:, None], x, clip=0.2)
    with pytest.raises(ValueError, match=r"clip must lie in \[0, inf\], got -1"):
        clipped_value_loss(x, x, x, clip=-1)
