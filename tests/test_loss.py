"""The chunked loss against the plain one and the definition; and the same sum however it is cut."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from seq2seq.training import loss as loss_module
from seq2seq.training.loss import smoothed_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
def test_values_and_gradients_equal_the_plain_loss(
    smoothing: float, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", chunk_rows)
    torch.manual_seed(0)
    hidden = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 9, (11,))
    loss, nll = smoothed_cross_entropy(hidden, weight, targets, smoothing)
    gradients = torch.autograd.grad(loss / 7, [hidden, weight])
    logits = hidden @ weight.t()
    plain = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    expected = torch.autograd.grad(plain / 7, [hidden, weight])
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="sum"))
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-12, atol=1e-12)


def test_smoothing_against_the_definition() -> None:
    # Two tokens, probabilities 3/4 and 1/4; the target distribution is (0.95, 0.05).
    hidden = torch.tensor([[math.log(3.0)]])
    weight = torch.tensor([[1.0], [0.0]])
    loss, nll = smoothed_cross_entropy(hidden, weight, torch.tensor([0]), 0.1)
    assert loss.item() == pytest.approx(-0.95 * math.log(0.75) - 0.05 * math.log(0.25), abs=1e-6)
    assert nll.item() == pytest.approx(-math.log(0.75), abs=1e-6)


def test_an_improbable_target_keeps_the_loss_finite() -> None:
    hidden = torch.tensor([[1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]])
    loss, nll = smoothed_cross_entropy(hidden, weight, torch.tensor([1]), 0.1)
    loss.backward()
    assert nll.item() == pytest.approx(2000.0)
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()


def test_under_autocast_the_loss_stays_near_fp32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 32, requires_grad=True), torch.randn(70, 32)
    targets = torch.randint(0, 70, (50,))
    exact, _ = smoothed_cross_entropy(hidden, weight, targets, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough, _ = smoothed_cross_entropy(hidden, weight, targets, 0.1)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.01)
