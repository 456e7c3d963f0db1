"""Pack the sentences of a batch without padding, with windows for attention.

Token-wise operations run over the N concatenated tokens of all sentences. Only attention needs
rows: there several sentences share a window, and a mask separates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.data.store import Ids
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Vocabulary

WINDOW_LEN = 48
"""Approximate length of windows, unless a sentence is longer: shorter ones have more overhead, and
more of longer ones is masked."""
TOKENS_ROUND, WINDOWS_ROUND, LENGTH_ROUND = 64, 4, 8
"""The number of tokens and windows and the window length are multiples of these. On a CPU, oneDNN
compiles a kernel for each new shape, which takes longer than running it."""
WINDOWS_ROUND_LEN = 128
"""The number of longer windows is not rounded: an extra one would cost more than a new kernel."""


@dataclass(frozen=True)
class Packed:
    """The sentences of one side of a batch: N tokens, and B windows of length L.

    ids, positions: (N,), each token and its position in its sentence; the last ones are filler.
    places: (N,), the index of each token in the windows, window * L + column. tokens: (B, L), the
    index of the token at each place. sentences: (B, L), the number of its sentence, -1 for an empty
    place. Empty places map to filler tokens and filler tokens to empty places, so neither affects a
    sentence, forward or backward. offsets: (sentences + 2,), the first token of each sentence, then
    of the filler (if there is any), then N.
    """

    ids: Tensor
    positions: Tensor
    places: Tensor
    tokens: Tensor
    sentences: Tensor
    offsets: Tensor

    @property
    def longest(self) -> int:
        """Upper bound of the length of sentences and filler."""
        return max(self.tokens.shape[1], TOKENS_ROUND)

    def to(self, device: torch.device) -> Packed:
        """Copy to a device."""
        return Packed(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))

    def pin(self) -> Packed:
        """Copy to pinned memory, for asynchronous copies to a GPU."""
        return Packed(*(tensor.pin_memory() for tensor in vars(self).values()))


@dataclass(frozen=True)
class Batch:
    """Packed input of a model and its labels.

    sides: arguments of the model's `forward`. For translation, the source, with end symbols, and
    the target, with start symbols; corresponding windows contain the same sentences. labels: (N,),
    of which all but the first `num_labels` are padding; for translation, the next target tokens,
    with end symbols.
    """

    sides: tuple[Packed, ...]
    labels: Tensor
    num_labels: int

    @property
    def source(self) -> Packed:
        """The first side."""
        return self.sides[0]

    @property
    def target(self) -> Packed:
        """The side that the labels belong to."""
        return self.sides[-1]

    def to(self, device: torch.device) -> Batch:
        """Copy to a device."""
        labels = self.labels.to(device, non_blocking=True)
        return Batch(tuple(side.to(device) for side in self.sides), labels, self.num_labels)

    def pin(self) -> Batch:
        """Copy to pinned memory, for asynchronous copies to a GPU."""
        sides = tuple(side.pin() for side in self.sides)
        return Batch(sides, self.labels.pin_memory(), self.num_labels)

    @property
    def num_tokens_with_filler(self) -> int:
        """Number of tokens of all sides, including filler."""
        return sum(len(side.ids) for side in self.sides)


def window_lens(longest: Sequence[int]) -> list[int]:
    """Return the window length of each side, for sentences of up to `longest` tokens there.

    It is a multiple of the longest, so that sentences of similar length fill a window.
    """
    multiple = max(1, round(WINDOW_LEN / max(longest)))
    return [_round_up(multiple * length, LENGTH_ROUND) for length in longest]


def collate(source_rows: Sequence[Ids], target_rows: Sequence[Ids], tokenizer: Tokenizer) -> Batch:
    """Pack pairs of id rows, without special symbols, into a batch."""
    vocabulary = tokenizer.target
    start = np.array([vocabulary.bos_id], dtype=np.int32)
    return pack_pairs(
        end_rows(source_rows, tokenizer.source),
        [np.concatenate([start, row]) for row in target_rows],  # np.insert and np.append are slow
        end_rows(target_rows, vocabulary),
    )


def pack_pairs(sources: Sequence[Ids], targets: Sequence[Ids], labels: Sequence[Ids]) -> Batch:
    """Pack encoder input, decoder input and labels."""
    sides = pack_sides(sources, targets)
    padded_labels = np.zeros(len(sides[1].ids), dtype=np.int64)
    num_labels = sum(map(len, targets))
    padded_labels[:num_labels] = np.concatenate(labels)
    return Batch(sides, torch.from_numpy(padded_labels), num_labels)


def pack_sides(*sides: Sequence[Ids]) -> tuple[Packed, ...]:
    """Pack rows of ids; rows of different sides with the same index share a window number."""
    lengths = window_lens([max(map(len, rows)) for rows in sides])
    windows, starts = _first_fit(sides, lengths)
    num_windows = _count_windows(sides, windows, lengths)
    return tuple(
        _pack(rows, windows, columns, num_windows, length)
        for rows, columns, length in zip(sides, starts, lengths, strict=True)
    )


def pack_grid(ids: NDArray[np.int64]) -> Packed:
    """Pack rows of one length, (B, L), one per window, without filler or empty places."""
    num_windows, length = ids.shape
    tokens = np.arange(ids.size)
    arrays = (
        ids.reshape(-1), tokens % length, tokens, tokens.reshape(ids.shape),
        (tokens // length).astype(np.int32).reshape(ids.shape),
        (np.arange(num_windows + 1) * length).astype(np.int32),
    )  # fmt: skip
    return Packed(*map(torch.from_numpy, arrays))


def one_each(rows: Sequence[Ids]) -> Packed:
    """Pack sentences, one per window, as a search needs them."""
    places = np.arange(len(rows))
    num_windows = _round_up(len(rows) + 1, WINDOWS_ROUND)
    return _pack(rows, places, np.zeros_like(places), num_windows, max(map(len, rows)))


def end_rows(rows: Sequence[Ids], vocabulary: Vocabulary) -> list[Ids]:
    """Append the end symbol to each row."""
    end = np.array([vocabulary.eos_id], dtype=np.int32)
    return [np.concatenate([row, end]) for row in rows]


def _first_fit(
    sides: Sequence[Sequence[Ids]], lengths: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the window of each sentence, and its first column on each side, (sides, sentences).

    First-fit decreasing: the longest first, each in the first window with space on every side.
    """
    lens = np.array([[len(row) for row in rows] for rows in sides])
    space = np.repeat(np.array(lengths)[:, None], lens.shape[1], axis=1)  # one each at most
    windows, starts = np.zeros(lens.shape[1], dtype=np.int64), np.zeros_like(lens)
    num_windows = 1
    for sentence in np.argsort(-lens.max(axis=0), kind="stable"):
        size = lens[:, sentence]
        fits = (size[:, None] <= space[:, :num_windows]).all(axis=0)
        window = int(fits.argmax()) if fits.any() else num_windows
        num_windows = max(num_windows, window + 1)
        windows[sentence], starts[:, sentence] = window, lengths - space[:, window]
        space[:, window] -= size
    return windows, starts


def _count_windows(
    sides: Sequence[Sequence[Ids]], windows: NDArray[np.int64], lengths: Sequence[int]
) -> int:
    """Return the number of windows, so that every side has an empty place."""
    count = int(windows.max()) + 1
    filled = (
        sum(map(len, rows)) == count * length for rows, length in zip(sides, lengths, strict=True)
    )
    count += any(filled)
    return _round_up(count, WINDOWS_ROUND) if max(lengths) <= WINDOWS_ROUND_LEN else count


def _pack(
    rows: Sequence[Ids],
    windows: NDArray[np.int64],
    columns: NDArray[np.int64],
    num_windows: int,
    length: int,
) -> Packed:
    """Pack rows of ids, each in its window and column."""
    lens = np.array([len(row) for row in rows])
    num_tokens = int(lens.sum())
    # At least one filler token, for the empty places.
    size = _round_up(num_tokens + 1, TOKENS_ROUND)
    ids, positions = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    ids[:num_tokens] = np.concatenate(rows)
    positions[:num_tokens] = np.arange(num_tokens) - np.repeat(np.cumsum(lens) - lens, lens)
    taken = np.repeat(windows * length + columns, lens) + positions[:num_tokens]
    tokens = np.full(num_windows * length, size - 1)
    tokens[taken] = np.arange(num_tokens)
    sentences = np.full(num_windows * length, -1, dtype=np.int32)
    sentences[taken] = np.repeat(np.arange(len(rows)), lens)
    places = np.full(size, sentences.argmin())
    places[:num_tokens] = taken
    offsets = np.cumsum([0, *lens, size - num_tokens], dtype=np.int32)
    grid = (num_windows, length)
    arrays = ids, positions, places, tokens.reshape(grid), sentences.reshape(grid), offsets
    return Packed(*map(torch.from_numpy, arrays))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
