"""Dropout with pooled random numbers: rate, scale, independence, gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import pack

from seq2seq.model.dropout import NO_DROPOUT, Dropout
from seq2seq.model.transformer import Transformer


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.75])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_fraction_dropped_and_the_scale_of_the_rest(
    probability: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.ones(333, 301, dtype=dtype)
    y = Dropout(probability, x.numel()).drop(x)
    assert (y == 0).double().mean().item() == pytest.approx(probability, abs=0.005)
    kept = y[y != 0].double()
    assert kept.min() == kept.max() == pytest.approx(1 / (1 - probability), rel=0.01)


@pytest.mark.parametrize("probability", [0.001, 0.999])
def test_a_probability_is_rounded_but_not_to_0_or_1(probability: float) -> None:
    torch.manual_seed(0)
    y = Dropout(probability).drop(torch.ones(100_000))
    assert 0.002 < (y == (0 if probability < 0.5 else 256)).double().mean() < 0.006


def test_elements_are_independent() -> None:
    torch.manual_seed(0)
    dropped = (Dropout(0.5, 400_000).drop(torch.ones(400_000)) == 0).double()
    for distance in (1, 2, 3, 4, 8, 128):
        both = (dropped[:-distance] * dropped[distance:]).mean().item()
        assert both == pytest.approx(0.25, abs=0.005)


def test_masks_of_one_pass_are_independent() -> None:
    torch.manual_seed(0)
    dropout, x = Dropout(0.5, 100_000), torch.ones(100_000)
    masks = torch.stack([(dropout.drop(x[: 100_000 - i]) == 0)[:99_000] for i in range(30)])
    both = masks.double() @ masks.double().t() / masks.shape[1]
    apart = both[~torch.eye(30, dtype=torch.bool)]
    torch.testing.assert_close(apart, torch.full_like(apart, 0.25), rtol=0, atol=0.01)


def test_masks_of_two_passes_do_not_overlap() -> None:
    torch.manual_seed(0)
    size = 600
    # Cut from one pool of four masks, ten masks would overlap somewhere.
    masks = [Dropout(0.5, size).drop(torch.ones(size)).numpy() - 1 for _ in range(10)]
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert np.abs(np.correlate(mask, other, "full")).max() < size / 4


def test_the_gradient_has_the_same_mask() -> None:
    x = torch.ones(7, 5, requires_grad=True)  # not a multiple of eight elements
    y = Dropout(0.4, 35).drop(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_does_not_drop_the_residual(dtype: torch.dtype) -> None:
    x = torch.randn(6, 5, dtype=dtype, requires_grad=True)
    y = torch.ones(6, 5, dtype=dtype, requires_grad=True)
    z = Dropout(0.5, 30).add(x, y)
    z.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))
    assert y.grad is not None and set(y.grad.flatten().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(z, x + y.grad)
    assert torch.equal(Dropout(0.0, 0).add(x, y), x + y)


def test_evaluation_has_no_dropout(make_model: Callable[..., Transformer]) -> None:
    x, side = torch.randn(50), pack([[4, 5, 6], [7, 8]])
    assert torch.equal(NO_DROPOUT.residual.drop(x), x) and torch.equal(Dropout(0.0, 50).drop(x), x)
    model = make_model(dropout=0.4)
    assert not torch.equal(model.train()(side, side), model(side, side))
    plain = model.eval()(side, side)
    assert torch.equal(plain, make_model(dropout=0.0).train()(side, side))
