"""Rows of attention on a CPU: their layout, and attention in them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import ATTENDED, SentenceLens, check_attention, packed_lens
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data.batching import Packed, pack_grid
from seq2seq.model import packed_attention
from seq2seq.model.packed_attention import PackedAttention, Rows
from seq2seq.model.transformer import Transformer


def test_sentences_share_rows() -> None:
    rows = Rows(*packed_lens(ATTENDED[0]), causal=False)
    shared = [len(set(row.tolist()) - {-1}) > 1 for row in rows.queries.sentences]
    assert sum(shared) >= 2


def test_the_layers_of_a_pass_share_rows(
    make_model: Callable[..., Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the encoder, of the decoder, and of the decoder's attention to the source."""
    made: list[bool] = []

    def counted(*sides: Packed, causal: bool) -> Rows:
        made.append(causal)
        return Rows(*sides, causal=causal)

    monkeypatch.setattr(packed_attention, "Rows", counted)
    own, other = packed_lens(ATTENDED[0])
    model = make_model().train()
    model.set_gradient_checkpointing(True)
    model(other, own).sum().backward()
    assert sorted(made) == [False, False, True]


def test_rows_are_full() -> None:
    """Rows of 25,000 tokens, in sentences of 2 to 60 tokens."""
    random = np.random.default_rng(1)
    target = random.integers(2, 60, 800)
    source = np.maximum(2, target + random.integers(-5, 6, 800))
    own, other = packed_lens(list(zip(target.tolist(), source.tolist(), strict=True)))
    for queries, keys in ((own, own), (other, other), (own, other)):
        rows = Rows(queries, keys, causal=False)
        assert queries.offsets[-2] / rows.queries.sentences.numel() > 0.8


@pytest.mark.parametrize("lens", ATTENDED)
def test_attend_equals_torch_in_values_and_gradients(lens: SentenceLens) -> None:
    own, other = packed_lens(lens)
    check_attention(PackedAttention._on_cpu, own, other, causal=False)
    check_attention(PackedAttention._on_cpu, own, own, causal=False)
    check_attention(PackedAttention._on_cpu, own, own, causal=True)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=20))
def test_attend_equals_torch_for_any_lengths(lens: SentenceLens) -> None:
    own, other = packed_lens(lens)
    check_attention(PackedAttention._on_cpu, own, other, causal=False)
    check_attention(PackedAttention._on_cpu, own, own, causal=True)


@pytest.mark.parametrize("length", [7, 16, 60])
def test_attend_equals_torch_for_contexts_of_one_length(length: int) -> None:
    grid = pack_grid(np.zeros((5, length), dtype=np.int64))
    check_attention(PackedAttention._on_cpu, grid, grid, causal=True)
    rows = Rows(grid, grid, causal=True)
    assert rows.queries.sentences.shape == (5, length)
    assert rows.bias(torch.float32).shape == (1, 1, length, length)  # the same for all
