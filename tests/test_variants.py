"""Layer variants: gradients, dropout, parameter counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import draw_heads, drawn, pack, small_shape
from torch import Tensor

from seq2seq.data.batching import context_window_batch, pack_grid
from seq2seq.model.dropout import Dropout
from seq2seq.model.packed_attention import PackedAttention
from seq2seq.model.positions import Rotate
from seq2seq.model.transformer import Classifier, LanguageModel, Transformer


def rotation(length: int, width: int) -> tuple[Tensor, Tensor]:
    angles = torch.outer(
        torch.arange(length, dtype=torch.float64),
        10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width),
    )
    return angles.sin(), angles.cos()


def test_the_gradient_of_rotated_heads_equals_autograd() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6 * 8, dtype=torch.float64, requires_grad=True)
    turn = rotation(5, 8)
    assert torch.autograd.gradcheck(lambda x: Rotate.apply(x.clone(), 4, *turn), x)
    turned, x = Rotate.apply(x.clone(), 4, *turn).view(5, 6, 8), x.detach().view(5, 6, 8)
    assert torch.equal(turned[:, 4:], x[:, 4:]) and not torch.equal(turned[1:, :4], x[1:, :4])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_attention_with_dropout_against_plain_products() -> None:
    side = pack_grid(np.zeros((6, 5), dtype=np.int64))
    heads = draw_heads(side, 3, 0)

    def ours() -> Tensor:
        return PackedAttention(side, side, Dropout(0.4, 1000))(heads)

    torch.manual_seed(1)
    found = ours()
    torch.manual_seed(1)
    q, k, v = (x.unflatten(0, (6, 5)).transpose(1, 2) for x in heads.unbind(1))
    probs = (q @ k.mT / math.sqrt(4)).softmax(dim=-1)  # (B, H, T, T)
    factors = Dropout(0.4, 1000).factors(probs)
    assert 0.2 < (factors == 0).double().mean() < 0.6
    plain = ((probs * factors) @ v).transpose(1, 2).flatten(0, 1).flatten(1)
    torch.testing.assert_close(found, plain)
    outer = torch.randn_like(found)
    ours_grad, plain_grad = (torch.autograd.grad(x, heads, outer) for x in (found, plain))
    torch.testing.assert_close(ours_grad, plain_grad)
    assert not torch.equal(found, ours())


def passes(**variant: Any) -> list[Callable[[], Tensor]]:
    """Return a training pass of each task, of the same shape."""
    torch.manual_seed(2)
    shape = small_shape(context=8, **variant)
    side, text = (
        pack([[3, 1, 4, 1, 5, 9, 2], [6, 5]]),
        context_window_batch(np.arange(18).reshape(2, 9)),
    )
    translating = drawn(Transformer(shape, 20)).train()
    writing = drawn(LanguageModel(shape, 20)).train()
    sorting = drawn(Classifier(shape, 20, 3)).train()
    return [lambda: translating(side, side), lambda: writing(*text.inputs), lambda: sorting(side)]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("key", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_is_used_in_every_task(key: str, activation: str) -> None:
    for run in passes(activation=activation, **{key: 0.5}):
        first, second = run(), run()
        assert not torch.allclose(first, second)
    for run in passes(activation=activation):
        assert torch.equal(run(), run())


def test_a_gated_layer_has_about_the_same_number_of_parameters() -> None:
    gated, plain = (
        Transformer(small_shape(ffn_dim=1024, activation=activation), 13).num_parameters()
        for activation in ("swiglu", "relu")
    )
    assert gated == pytest.approx(plain, rel=0.03)


def test_concatenated_matrices_are_initialised_by_their_own_shape() -> None:
    shape = small_shape(dim=64, ffn_dim=1536, activation="swiglu")
    torch.manual_seed(0)
    layer = Transformer(shape, 13).encoder.layers[0]
    for weight in (layer.feed_forward.up.weight, layer.self_attention.key_value.weight):
        limit = math.sqrt(6 / (64 + len(weight) // 2))
        assert weight.abs().max().item() == pytest.approx(limit, rel=0.01)
