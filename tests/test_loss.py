"""The chunked loss against a plain implementation and the definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seq2seq.data.batching import pack_pairs
from seq2seq.model.transformer import Transformer
from seq2seq.training import loss as loss_module
from seq2seq.training.loss import ModelLoss, smoothed_cross_entropy


@pytest.fixture
def no_luck() -> Iterator[None]:
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def plain_loss(
    passes: Sequence[Tensor], weight: Tensor, targets: Tensor, smoothing: float, alpha: float
) -> Tensor:
    """The loss by PyTorch's functions, in the precision that autocast gives them."""
    logits = [hidden @ weight.t() for hidden in passes]
    losses = [
        F.cross_entropy(each, targets, label_smoothing=smoothing, reduction="sum")
        for each in logits
    ]
    loss = torch.stack(losses).mean()
    if alpha:
        p, q = (each.log_softmax(dim=-1) for each in logits)
        for first, second in ((p, q), (q, p)):
            loss = loss + alpha / 4 * F.kl_div(first, second, reduction="sum", log_target=True)
    return loss


def own_loss(
    passes: Sequence[Tensor],
    weight: Tensor,
    targets: Tensor,
    count: int,
    smoothing: float,
    alpha: float,
) -> tuple[Tensor, Tensor]:
    """The loss of the passes of a batch, as `ModelLoss` computes it."""
    rows = torch.stack(tuple(passes), dim=1).flatten(0, 1)
    targets = targets.repeat_interleave(len(passes))
    loss, nll = smoothed_cross_entropy(rows, weight, targets, len(passes) * count, smoothing, alpha)
    return loss / len(passes), nll / len(passes)


@pytest.mark.usefixtures("no_luck")
@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_tokens", [2, 4, 100])
@pytest.mark.parametrize("count", [0, 4, 6, 11, 20])
def test_values_and_gradients_equal_the_plain_loss_of_the_real_rows(
    alpha: float, smoothing: float, chunk_tokens: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_TOKENS", chunk_tokens)
    torch.manual_seed(0)
    num_passes, targets = 2 if alpha else 1, torch.randint(0, 9, (20,))
    shapes = [(20, 6)] * num_passes + [(9, 6)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    *passes, weight = inputs
    loss, nll = own_loss(passes, weight, targets, count, smoothing, alpha)
    real = [each[:count] for each in passes]
    plain = plain_loss(real, weight, targets[:count], smoothing, alpha)
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, plain_loss(real, weight, targets[:count], 0.0, 0.0))
    gradients = torch.autograd.grad(loss / 7, inputs)
    expected = torch.autograd.grad(plain / 7, inputs)
    torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-12)


def test_only_training_passes_a_batch_twice(make_model: Callable[..., Transformer]) -> None:
    model = make_model(dropout=0.3)
    rows = [np.array([5, 6, 7]), np.array([8, 9])]
    batch = pack_pairs(rows, rows, rows)
    once, twice = ModelLoss(model, 0.1), ModelLoss(model, 0.1, alpha=5.0)
    plain, _ = once(batch)
    torch.testing.assert_close(twice(batch)[0], plain)
    twice.train()
    torch.manual_seed(1)
    first, second = (model(batch.inputs[0], batch.inputs[1]) for _ in range(2))
    assert not torch.equal(first, second)
    real = [each[: batch.num_labels] for each in (first, second)]
    labels = batch.labels[: batch.num_labels]
    expected = plain_loss(real, model.output.weight, labels, 0.1, 5.0)
    torch.manual_seed(1)
    torch.testing.assert_close(twice(batch)[0], expected)


def test_an_improbable_target_keeps_the_loss_finite() -> None:
    hidden = torch.tensor([[1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]])
    loss, nll = smoothed_cross_entropy(hidden, weight, torch.tensor([1]), 1, 0.1)
    loss.backward()
    assert 87 <= nll.item() < math.inf and math.isfinite(loss.item())
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()


@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("strength", "confidence"), [(0, 0.0), (8, 0.26), (11, 0.74), (17, 0.994), (20, 0.9993)]
)
def test_gradients_in_half_precision_are_as_exact_as_those_of_autocast(
    strength: float, confidence: float, dtype: torch.dtype, smoothing: float, alpha: float
) -> None:
    """Whatever the mean probability of the targets is, compared with float64."""
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(8000, 128, generator=random) * 128**-0.5
    targets = torch.randint(0, 8000, (128,), generator=random)
    passes = [
        0.6 * torch.randn(128, 128, generator=random) + strength * weight[targets]
        for _ in range(2 if alpha else 1)
    ]
    inputs = [*passes, weight]
    exact = [each.double().requires_grad_() for each in inputs]
    probs = (exact[0] @ exact[-1].t()).softmax(dim=-1)
    assert probs[torch.arange(128), targets].mean().item() == pytest.approx(confidence, abs=0.02)
    loss = plain_loss(exact[:-1], exact[-1], targets, smoothing, alpha)
    expected = torch.autograd.grad(loss, exact)

    def errors(compute: Callable[[list[Tensor]], Tensor]) -> list[float]:
        leaves = [each.clone().requires_grad_() for each in inputs]
        with torch.autocast("cpu", dtype=dtype):
            loss = compute(leaves)
        found = torch.autograd.grad(loss, leaves)
        pairs = zip(found, expected, strict=True)
        return [((a - b).norm() / b.norm()).item() for a, b in pairs]

    autocast = errors(lambda x: plain_loss(x[:-1], x[-1], targets, smoothing, alpha))
    own = errors(lambda x: own_loss(x[:-1], x[-1], targets, 128, smoothing, alpha)[0])
    for error, limit in zip(own, autocast, strict=True):
        assert error <= 1.1 * limit


def test_the_nll_of_confident_tokens_is_exact_in_bf16() -> None:
    """-log p is 7e-4 and less here, where the next number below 1 in bf16 is 1 - 4e-3."""
    logits = torch.tensor([[8.0, 0.0], [10.0, 0.0], [14.0, 0.0]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [
            smoothed_cross_entropy(row, torch.eye(2), torch.tensor([0]), 1, 0.0)[1].item()
            for row in logits[:, None]
        ]
    expected = F.cross_entropy(logits.double(), torch.zeros(3, dtype=torch.long), reduction="none")
    assert found == pytest.approx(expected.tolist(), rel=5e-3)


@pytest.mark.parametrize("alpha", [0.0, 4.0])
def test_a_bias_of_the_logits_is_in_the_loss_and_has_a_gradient(
    make_model: Callable[..., Transformer], alpha: float
) -> None:
    model = make_model(output_bias=True).double().train()
    rows = [np.array([3, 4, 5], dtype=np.int32), np.array([6, 7], dtype=np.int32)]
    batch = pack_pairs(rows, rows, rows)
    loss, _ = ModelLoss(model, 0.1, alpha)(batch)
    logits, labels = model.output(model(*batch.inputs)), batch.labels[: batch.num_labels]
    plain = F.cross_entropy(
        logits[: batch.num_labels], labels, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)
    found, expected = (
        torch.autograd.grad(each, [model.output.bias, model.output.weight])
        for each in (loss, plain)
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
