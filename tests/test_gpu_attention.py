"""Attention on a GPU: rows, and flash attention with a substitute for its kernel."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import (
    ATTENDED,
    VOCABULARY,
    SentenceLens,
    attend_by_sentence,
    check_attention,
    packed_lens,
)
from test_packing import SOURCES, TARGETS
from torch import Tensor

from seq2seq.data.batching import Packed, collate, pack_grid
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.model import packed_attention
from seq2seq.model.packed_attention import PackedAttention
from seq2seq.model.transformer import Transformer
from seq2seq.training.loss import ModelLoss


def check_rows(own: Packed, other: Packed, causal: bool) -> None:
    """Compare attention in rows with attention sentence by sentence."""
    found = check_attention(PackedAttention._on_gpu, own, other, causal=causal)
    assert found.isfinite().all()  # that of padding, too


@pytest.mark.parametrize("lens", ATTENDED)
def test_rows_equal_attention_of_each_sentence(lens: SentenceLens) -> None:
    own, other = packed_lens(lens)
    check_rows(own, other, False)
    check_rows(own, own, False)
    check_rows(own, own, True)


def test_contexts_of_one_length() -> None:
    grid = pack_grid(np.zeros((5, 7), dtype=np.int64))
    check_rows(grid, grid, True)


@pytest.fixture(params=["flash", "rows"])
def as_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attend as on a GPU that has flash attention, or does not."""

    def attend(attention: PackedAttention, heads: Sequence[Tensor]) -> Tensor:
        calls.append(len(heads))
        return attention._on_gpu(heads)

    def kernel(*inputs: Any, causal: bool) -> Tensor:
        """Check what the kernel relies on."""
        for offsets, limit in zip(inputs[3:5], inputs[5:], strict=True):
            assert all(end - start <= limit for start, end in pairwise(offsets.tolist()))
        return attend_by_sentence(*inputs, causal=causal)

    calls: list[int] = []
    monkeypatch.setattr(PackedAttention, "_on_cpu", attend)
    found = kernel if request.param == "flash" else None
    monkeypatch.setattr(packed_attention, "find_kernel", lambda *_: found)
    yield
    assert calls


@pytest.fixture
def expected(make_model: Callable[..., Transformer]) -> list[tuple[Transformer, list[Tensor]]]:
    """Models with their losses and gradients by attention on a CPU."""
    variants: list[dict[str, Any]] = [{}, {"norm": "pre", "positions": "rotary"}]
    models = [make_model(**variant).double() for variant in variants]
    return [(model, loss_and_gradients(model)) for model in models]


def loss_and_gradients(model: Transformer) -> list[Tensor]:
    batch = collate(SOURCES, TARGETS, Tokenizer(VOCABULARY, VOCABULARY))
    loss, _ = ModelLoss(model, 0.1)(batch)
    return [loss, *torch.autograd.grad(loss, [*model.parameters()])]


def test_updates_equal_those_on_a_cpu(
    expected: list[tuple[Transformer, list[Tensor]]], as_on_a_gpu: None
) -> None:
    for model, wanted in expected:
        for found, other in zip(loss_and_gradients(model), wanted, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, ""),
        (RuntimeError("FlashAttention only supports Ampere GPUs or newer"), "only supports Ampere"),
    ],
)
def test_flash_attention_is_used_only_where_it_works(
    error: Exception | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And what it costs is said once, but not to those who want fp32."""

    def kernel(x: Tensor, *_: object, **__: object) -> Tensor:
        if error:
            raise error
        return x

    cuda, find = torch.device("cuda"), packed_attention.find_kernel
    ones, tensor = torch.ones, torch.tensor
    monkeypatch.setattr(torch, "ones", lambda *shape, device, **options: ones(*shape, **options))
    monkeypatch.setattr(torch, "tensor", lambda *data, device, **options: tensor(*data, **options))
    monkeypatch.setattr(packed_attention, "varlen_kernel", lambda: kernel)
    find.cache_clear()
    assert find(torch.device("cpu"), torch.bfloat16, 8) is None
    assert find(cuda, torch.float32, 8) is None
    assert not caplog.text
    for _ in range(2):
        with torch.inference_mode():
            assert find(cuda, torch.bfloat16, 8) is (None if error else kernel)
    assert message in caplog.text and len(caplog.records) == bool(error)
    find.cache_clear()


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10), reason="it came later"
)
def test_torch_has_the_kernel_with_these_parameters() -> None:
    """Called on the meta device, which checks the arguments."""
    kernel = packed_attention.varlen_kernel()
    x = torch.empty(8, 1, 8, device="meta", dtype=torch.bfloat16)
    offsets = torch.empty(3, device="meta", dtype=torch.int32)
    for causal in (False, True):
        assert kernel(x, x, x, offsets, offsets, 8, 8, causal=causal).shape == x.shape


@pytest.mark.parametrize("causal", [False, True])
def test_the_parameters_of_torch_2_10_and_of_later_versions(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(*_: int, is_causal: bool = False) -> object:
        return is_causal

    def later(*_: int, window_size: tuple[int, int] = (-1, -1)) -> object:
        return {(-1, 0): True, (-1, -1): False}[window_size]

    for function in (first, later):
        module = SimpleNamespace(varlen_attn=function)
        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
        kernel = packed_attention.varlen_kernel()
        assert kernel(1, 2, causal=causal) is causal
