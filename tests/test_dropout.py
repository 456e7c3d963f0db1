"""The cheap dropout against what dropout must do."""

from __future__ import annotations

import pytest
import torch

from seq2seq.model.dropout import Dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.75])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_share_that_goes_and_the_scale_of_what_stays(
    probability: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.ones(333, 301, dtype=dtype)
    y = Dropout(probability).train()(x)
    assert (y == 0).double().mean().item() == pytest.approx(probability, abs=0.005)
    kept = y[y != 0].double()
    assert kept.min() == kept.max() == pytest.approx(1 / (1 - probability), rel=0.01)


def test_places_are_independent() -> None:
    torch.manual_seed(0)
    dropped = (Dropout(0.5).train()(torch.ones(400_000)) == 0).double()
    for distance in (1, 2, 3, 4, 8):
        both = (dropped[:-distance] * dropped[distance:]).mean().item()
        assert both == pytest.approx(0.25, abs=0.005)


def test_the_gradient_takes_the_same_places() -> None:
    x = torch.ones(7, 5, requires_grad=True)  # not a multiple of eight elements
    y = Dropout(0.4).train()(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())


def test_nothing_goes_outside_training_and_a_seed_repeats_the_mask() -> None:
    x = torch.randn(50)
    layer = Dropout(0.4)
    assert torch.equal(layer.eval()(x), x) and torch.equal(Dropout(0.0).train()(x), x)
    torch.manual_seed(3)
    first = layer.train()(x)
    assert not torch.equal(layer(x), first)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
