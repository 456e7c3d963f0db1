"""Flash attention in the model, with a substitute for the GPU kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, drawn, small_shape
from test_packing import SOURCES, TARGETS
from torch import Tensor
from torch.nn import functional as F

from seq2seq.data.context_windows import context_window_batch
from seq2seq.data.packing import collate, pack_sides
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.model import flash, stack
from seq2seq.model.classifier import Classifier
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import ModelLoss


def attend_by_sentence(
    queries: Tensor, keys: Tensor, values: Tensor, own: Tensor, other: Tensor,
    max_q: int, max_k: int, *, window_size: tuple[int, int],
) -> Tensor:  # fmt: skip
    """Compute torch.nn.attention.varlen.varlen_attn on any device, one sentence at a time."""
    assert own.dtype == other.dtype == torch.int32 and len(own) == len(other)
    assert own[-1] == len(queries) and other[-1] == len(keys) == len(values)
    outputs = []
    for start, end, first, last in zip(own, own[1:], other, other[1:], strict=False):
        assert 0 < end - start <= max_q and 0 < last - first <= max_k
        q, k, v = queries[start:end], keys[first:last], values[first:last]
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (H, T, K)
        causal = window_size == (-1, 0)
        assert causal or window_size == (-1, -1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        outputs.append(attended.transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_flash_attention_equals_windows_in_values_and_gradients(
    make_model: Callable[..., Transformer], norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(norm=norm).double()
    batch = collate(SOURCES, TARGETS, Tokenizer(VOCABULARY, VOCABULARY))
    loss, _ = ModelLoss(model, 0.1)(batch)
    expected = torch.autograd.grad(loss, [*model.parameters()])
    monkeypatch.setattr(stack, "find_kernel", lambda *_: attend_by_sentence)
    monkeypatch.setattr("seq2seq.model.attention.Windows.split", lambda *_: pytest.fail("windows"))
    other, _ = ModelLoss(model, 0.1)(batch)
    torch.testing.assert_close(other, loss, rtol=1e-12, atol=1e-12)
    for gradient, wanted in zip(
        torch.autograd.grad(other, [*model.parameters()]), expected, strict=True
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_flash_attention_equals_windows_for_other_tasks(
    positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = small_shape(context=8, positions=positions)
    windows = context_window_batch(np.arange(27).reshape(3, 9) % 13)
    [texts] = pack_sides([np.array([3, 1, 4, 1, 5]), np.array([9, 2])])
    torch.manual_seed(1)
    families = [
        (drawn(LanguageModel(shape, 13)).double(), windows.sides),
        (drawn(Classifier(shape, 13, 2)).double(), (texts,)),
    ]
    expected = [model(*sides) for model, sides in families]
    monkeypatch.setattr(stack, "find_kernel", lambda *_: attend_by_sentence)
    monkeypatch.setattr("seq2seq.model.attention.Windows.split", lambda *_: pytest.fail("windows"))
    for (model, sides), wanted in zip(families, expected, strict=True):
        torch.testing.assert_close(model(*sides), wanted, rtol=1e-12, atol=1e-12)


def test_flash_attention_is_used_only_where_it_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not flash.find_kernel(torch.ones(3, 8, dtype=torch.bfloat16), 8)  # on a CPU

    def refuse(*_: object, **__: object) -> Tensor:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer")

    flash.kernel_works.cache_clear()
    monkeypatch.setattr(flash, "varlen_kernel", lambda: refuse)
    device = torch.device("cpu")
    assert not flash.kernel_works(device, 8)
    assert "only supports Ampere" in caplog.text and len(caplog.records) == 1
    monkeypatch.setattr(flash, "varlen_kernel", lambda: attend_by_sentence)
    assert not flash.kernel_works(device, 8)  # asked once for each device
    flash.kernel_works.cache_clear()
    with torch.inference_mode():
        assert flash.kernel_works(device, 8)
    flash.kernel_works.cache_clear()


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="it came later"
)
def test_torch_has_the_kernel_with_these_parameters() -> None:
    assert flash.varlen_kernel() is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("recompute", [False, True])
def test_flash_attention_equals_windows_on_a_gpu(
    make_model: Callable[..., Transformer], recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model().cuda().train()
    model.gradient_checkpointing = recompute
    batch = collate(SOURCES, TARGETS, Tokenizer(VOCABULARY, VOCABULARY)).to(torch.device("cuda"))
    results = []
    for kernel in (flash.varlen_kernel(), None):
        monkeypatch.setattr(stack, "find_kernel", lambda *_, kernel=kernel: kernel)
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = ModelLoss(model, 0.1)(batch)
        results.append((loss, torch.autograd.grad(loss, [*model.parameters()])))
    (loss, gradients), (wanted, others) = results
    torch.testing.assert_close(loss, wanted, rtol=0.01, atol=0.01)
    for gradient, other in zip(gradients, others, strict=True):
        assert (gradient - other).norm() <= 0.05 * other.norm() + 1e-3
