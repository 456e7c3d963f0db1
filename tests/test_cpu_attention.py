"""Windows of attention on a CPU: their layout, and attention in them."""

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
from torch import Tensor

from seq2seq.data.packing import Packed, pack_grid
from seq2seq.model.cpu_attention import Side, attend, window_lens, windows_of
from seq2seq.model.dropout import NO_DROPOUT


def check_side(packed: Packed, side: Side, length: int) -> None:
    """Check the windows of one side against the description of `Side`."""
    tokens, sentences, places = side._tokens.flatten(), side.sentences.flatten(), side._places
    num_windows, columns = side.sentences.shape
    assert columns == length and len(places) == len(packed.ids)
    real = int(packed.offsets[-2])
    assert torch.equal(tokens[places[:real]], torch.arange(real))
    # A sentence has as many places as tokens, side by side in one window.
    for i, (start, end) in enumerate(pairwise(packed.offsets[:-1].tolist())):
        [own] = (sentences == i).nonzero().T
        first = int(places[start])
        assert own.tolist() == list(range(first, first + end - start))
        assert torch.equal(own, places[start:end])
        assert first // length == (first + end - start - 1) // length < num_windows
    # Padding reads empty places, and empty places padding.
    assert (sentences[places[real:]] == -1).all()
    assert (tokens[sentences == -1] >= real).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=40))
@example([(64, 64)] * 4)  # nothing is left of the windows
@example([(16, 16)] * 12)
def test_every_token_has_one_place_and_both_sides_the_same_window(lens: SentenceLens) -> None:
    own, other = packed_lens(lens)
    windows = windows_of(own, other, False)
    lengths = window_lens([own.longest, other.longest])
    check_side(own, windows.queries, lengths[0])
    check_side(other, windows.keys, lengths[1])
    # Window for window, the same sentences on both sides; and no two windows would go into one.
    both = windows.queries.sentences, windows.keys.sentences
    for window, same in zip(*both, strict=True):
        assert {-1, *window.tolist()} == {-1, *same.tolist()}
    used = torch.stack([(sentences >= 0).sum(1) for sentences in both])
    used = used[:, used.any(0)]
    fits = (used[:, :, None] + used[:, None, :] <= torch.tensor(lengths)[:, None, None]).all(0)
    assert not fits.triu(1).any()


@pytest.mark.parametrize(
    ("longest", "length"), [(1, 48), (7, 56), (17, 56), (24, 48), (34, 40), (64, 64), (65, 72)]
)
def test_window_lengths_are_multiples_of_the_longest_sentence(longest: int, length: int) -> None:
    assert window_lens([longest]) == [length]
    assert window_lens([longest, 1])[0] == length  # the longer side decides how many


def test_sentences_share_windows_and_layers_their_layout() -> None:
    own, other = packed_lens(ATTENDED[0])
    windows = windows_of(own, other, False)
    shared = [len(set(window.tolist()) - {-1}) > 1 for window in windows.queries.sentences]
    assert sum(shared) >= 2
    assert windows_of(own, other, False) is windows
    assert windows_of(own, own, False) is not windows_of(own, own, True)
    freed = ref(windows)
    del windows, own, other
    gc.collect()
    assert freed() is None  # with the batch


def test_windows_are_full() -> None:
    """Of 25,000 tokens of sentences of 2 to 60 tokens."""
    random = np.random.default_rng(1)
    target = random.integers(2, 60, 800)
    source = np.maximum(2, target + random.integers(-5, 6, 800))
    own, other = packed_lens(list(zip(target.tolist(), source.tolist(), strict=True)))
    for side, keys in ((own, own), (other, other), (own, other)):
        windows = windows_of(side, keys, False)
        assert side.offsets[-2] / windows.queries.sentences.numel() > 0.8


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
    windows = windows_of(grid, grid, True)
    assert windows.queries.sentences.shape == (5, length)
    assert windows.bias(torch.float32).shape == (1, 1, length, length)  # the same for all


def test_a_window_made_without_gradients_serves_training() -> None:
    own, _ = packed_lens(ATTENDED[0])
    with torch.inference_mode():
        windows_of(own, own, False).bias(torch.float64)
    check_attention(cpu_attend, own, own, causal=False)


def test_the_bias_is_that_of_its_description() -> None:
    own, _ = packed_lens([(3, 3), (2, 2)])
    windows = windows_of(own, own, True)
    visible = windows.bias(torch.float32)[0, 0] == 0
    columns = windows.queries._places[:5]
    expected: Tensor = torch.block_diag(torch.ones(3, 3).tril(), torch.ones(2, 2).tril())
    assert torch.equal(visible[columns][:, columns], expected.bool())
