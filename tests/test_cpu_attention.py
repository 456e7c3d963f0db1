"""Rows of attention on a CPU: their layout, and attention in them."""

from __future__ import annotations

import gc
from functools import partial
from weakref import ref

import numpy as np
import pytest
import torch
from conftest import ATTENDED, SentenceLens, check_attention, packed_lens
from hypothesis import given, settings
from hypothesis import strategies as st

from seq2seq.data.packing import pack_grid
from seq2seq.model.cpu_attention import attend
from seq2seq.model.dropout import NO_DROPOUT
from seq2seq.model.rows import rows_of


def test_sentences_share_rows_and_layers_their_layout() -> None:
    own, other = packed_lens(ATTENDED[0])
    rows = rows_of(own, other, False)
    shared = [len(set(row.tolist()) - {-1}) > 1 for row in rows.queries.sentences]
    assert sum(shared) >= 2
    assert rows_of(own, other, False) is rows
    assert rows_of(own, own, False) is not rows_of(own, own, True)
    freed = ref(rows)
    del rows, own, other
    gc.collect()
    assert freed() is None  # with the batch


def test_rows_are_full() -> None:
    """Rows of 25,000 tokens, in sentences of 2 to 60 tokens."""
    random = np.random.default_rng(1)
    target = random.integers(2, 60, 800)
    source = np.maximum(2, target + random.integers(-5, 6, 800))
    own, other = packed_lens(list(zip(target.tolist(), source.tolist(), strict=True)))
    for queries, keys in ((own, own), (other, other), (own, other)):
        rows = rows_of(queries, keys, False)
        assert queries.offsets[-2] / rows.queries.sentences.numel() > 0.8


cpu_attend = partial(attend, dropout=NO_DROPOUT.attention)


@pytest.mark.parametrize("apart", [0, 4])
@pytest.mark.parametrize("lens", ATTENDED)
def test_attend_equals_torch_in_values_and_gradients(lens: SentenceLens, apart: int) -> None:
    own, other = packed_lens(lens)
    check_attention(cpu_attend, own, other, causal=False, apart=apart)
    check_attention(cpu_attend, own, own, causal=False, apart=apart)
    check_attention(cpu_attend, own, own, causal=True, apart=apart)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=20))
def test_attend_equals_torch_for_any_lengths(lens: SentenceLens) -> None:
    own, other = packed_lens(lens)
    check_attention(cpu_attend, own, other, causal=False)
    check_attention(cpu_attend, own, own, causal=True)


@pytest.mark.parametrize("length", [7, 16, 60])
def test_attend_equals_torch_for_contexts_of_one_length(length: int) -> None:
    grid = pack_grid(np.zeros((5, length), dtype=np.int64))
    check_attention(cpu_attend, grid, grid, causal=True)
    rows = rows_of(grid, grid, True)
    assert rows.queries.sentences.shape == (5, length)
    assert rows.bias(torch.float32).shape == (1, 1, length, length)  # the same for all


def test_rows_made_without_gradients_serve_training() -> None:
    own, _ = packed_lens(ATTENDED[0])
    with torch.inference_mode():
        rows_of(own, own, False).bias(torch.float64)
    check_attention(cpu_attend, own, own, causal=False)
