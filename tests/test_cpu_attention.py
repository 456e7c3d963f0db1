"""Rows of attention on a CPU: their layout, and attention in them."""

from __future__ import annotations

import gc
from functools import partial
from itertools import pairwise
from weakref import ref

import numpy as np
import pytest
import torch
from conftest import ATTENDED, SentenceLens, check_attention, packed_lens
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seq2seq.data.packing import Packed, pack_grid, row_lens
from seq2seq.model.cpu_attention import attend
from seq2seq.model.dropout import NO_DROPOUT
from seq2seq.model.rows import Layout, rows_of


def check_layout(packed: Packed, layout: Layout, length: int) -> None:
    """Check a layout against the description of `Layout`."""
    tokens, sentences = layout.tokens.flatten(), layout.sentences.flatten()
    cells = layout.cells
    num_rows, columns = layout.sentences.shape
    assert columns == length and len(cells) == len(packed.ids)
    real = int(packed.offsets[-2])
    assert torch.equal(tokens[cells[:real]], torch.arange(real))
    # A sentence has as many cells as tokens, side by side in one row.
    for i, (start, end) in enumerate(pairwise(packed.offsets[:-1].tolist())):
        [own] = (sentences == i).nonzero().T
        first = int(cells[start])
        assert own.tolist() == list(range(first, first + end - start))
        assert torch.equal(own, cells[start:end])
        assert first // length == (first + end - start - 1) // length < num_rows
    # Padding reads empty cells, and empty cells padding.
    assert (sentences[cells[real:]] == -1).all()
    assert (tokens[sentences == -1] >= real).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=40))
@example([(64, 64)] * 4)  # nothing is left of the rows
@example([(16, 16)] * 12)
def test_every_token_has_one_cell_and_queries_and_keys_the_same_row(lens: SentenceLens) -> None:
    own, other = packed_lens(lens)
    rows = rows_of(own, other, False)
    lengths = row_lens([own.longest, other.longest])
    check_layout(own, rows.queries, lengths[0])
    check_layout(other, rows.keys, lengths[1])
    # Row for row, the same sentences for both; and no two rows would go into one.
    both = rows.queries.sentences, rows.keys.sentences
    for row, same in zip(*both, strict=True):
        assert {-1, *row.tolist()} == {-1, *same.tolist()}
    used = torch.stack([(sentences >= 0).sum(1) for sentences in both])
    used = used[:, used.any(0)]
    fits = (used[:, :, None] + used[:, None, :] <= torch.tensor(lengths)[:, None, None]).all(0)
    assert not fits.triu(1).any()


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
    """Of 25,000 tokens of sentences of 2 to 60 tokens."""
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
