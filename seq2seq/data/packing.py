"""How the sentences of a batch are laid out: no padding, and windows for attention.

Everything that looks at one token at a time runs over N tokens that follow each other, sentence
after sentence. Attention alone needs rows: there the sentences share windows of equal length, each
wherever it fits, and a mask keeps them apart.
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
"""Windows are about so long, if no sentence is longer: shorter ones are many, and of longer ones
more is masked."""
TOKENS_ROUND, WINDOWS_ROUND, LENGTH_ROUND = 64, 4, 8
"""Tokens, windows and their length are multiples of these. For every new shape a library of matrix
products compiles a program, which on a CPU takes longer than to run it."""
WINDOWS_ROUND_LEN = 128
"""Longer windows are as many as needed: more of them would cost more than a program."""


@dataclass(frozen=True)
class Packed:
    """The sentences of one side of a batch: N tokens, and B windows of L places.

    ids, positions: (N,), each token and its place in its sentence; what is left of N is filler.
    places: (N,), where each token stands, window * L + column. tokens: (B, L), which token stands
    at each place. sentences: (B, L), the number of its sentence, -1 where a place is empty; or (1,
    L), where each window is one sentence. An empty place reads a filler token, and a filler token
    an empty place: neither reaches a sentence, forward or backward. offsets: (sentences + 2,),
    where each sentence begins among the tokens, then the filler (if there is any), then N.
    """

    ids: Tensor
    positions: Tensor
    places: Tensor
    tokens: Tensor
    sentences: Tensor
    offsets: Tensor

    @property
    def longest(self) -> int:
        """No sentence has more tokens, nor has the filler."""
        return max(self.tokens.shape[1], TOKENS_ROUND)

    def to(self, device: torch.device) -> Packed:
        """Copy to a device."""
        return Packed(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))

    def pin(self) -> Packed:
        """Copy to memory from which a GPU copies while the host goes on."""
        return Packed(*(tensor.pin_memory() for tensor in vars(self).values()))


@dataclass(frozen=True)
class Batch:
    """What a model reads, packed, and what it should say of it.

    sides: what the model's `forward` takes. Of a translation they are the source, each sentence
    ended, and the target, each begun by the start symbol; a window of the one and that of the
    other hold the same sentences. labels: what the model should say, (N,), of which the first
    `num_labels` are real; of a translation the target's tokens one place earlier, each sentence
    ended.
    """

    sides: tuple[Packed, ...]
    labels: Tensor
    num_labels: int

    @property
    def source(self) -> Packed:
        """What is read first."""
        return self.sides[0]

    @property
    def target(self) -> Packed:
        """What the labels belong to."""
        return self.sides[-1]

    def to(self, device: torch.device) -> Batch:
        """Copy to a device."""
        labels = self.labels.to(device, non_blocking=True)
        return Batch(tuple(side.to(device) for side in self.sides), labels, self.num_labels)

    def pin(self) -> Batch:
        """Copy to memory from which a GPU copies while the host goes on."""
        sides = tuple(side.pin() for side in self.sides)
        return Batch(sides, self.labels.pin_memory(), self.num_labels)

    @property
    def num_padded_tokens(self) -> int:
        """Tokens of all sides, filler included."""
        return sum(len(side.ids) for side in self.sides)


def window_lens(longest: Sequence[int]) -> list[int]:
    """Return the length of each side's windows, for sentences of up to `longest` tokens there.

    That is a multiple of the longest, so that sentences of like length fill a window too.
    """
    multiple = max(1, round(WINDOW_LEN / max(longest)))
    return [_round_up(multiple * length, LENGTH_ROUND) for length in longest]


def collate(source_rows: Sequence[Ids], target_rows: Sequence[Ids], tokenizer: Tokenizer) -> Batch:
    """Pack pairs of id rows, without special symbols, into a batch."""
    vocabulary = tokenizer.target
    start = np.array([vocabulary.bos_id], dtype=np.int32)
    return pack_pairs(
        end_rows(source_rows, tokenizer.source),
        [np.concatenate([start, row]) for row in target_rows],  # insert and append take long
        end_rows(target_rows, vocabulary),
    )


def pack_pairs(sources: Sequence[Ids], targets: Sequence[Ids], labels: Sequence[Ids]) -> Batch:
    """Pack what the encoder reads, what the decoder reads, and what it should say."""
    sides = pack_sides(sources, targets)
    wanted = np.zeros(len(sides[1].ids), dtype=np.int64)
    num_labels = sum(map(len, targets))
    wanted[:num_labels] = np.concatenate(labels)
    return Batch(sides, torch.from_numpy(wanted), num_labels)


def pack_sides(*sides: Sequence[Ids]) -> tuple[Packed, ...]:
    """Pack rows of ids; those that share a window on one side do so on the others."""
    lengths = window_lens([max(map(len, rows)) for rows in sides])
    windows, starts = _first_fit(sides, lengths)
    num_windows = _count_windows(sides, windows, lengths)
    return tuple(
        _pack(rows, windows, columns, num_windows, length)
        for rows, columns, length in zip(sides, starts, lengths, strict=True)
    )


def pack_grid(ids: NDArray[np.int64]) -> Packed:
    """Pack rows of one length, (B, L), with a window for each: there is neither filler nor room."""
    num_windows, length = ids.shape
    tokens = np.arange(ids.size)
    arrays = (
        ids.reshape(-1), tokens % length, tokens, tokens.reshape(ids.shape),
        np.zeros((1, length), dtype=np.int32),
        (np.arange(num_windows + 1) * length).astype(np.int32),
    )  # fmt: skip
    return Packed(*map(torch.from_numpy, arrays))


def one_each(rows: Sequence[Ids]) -> Packed:
    """Pack sentences with a window for each, as a search needs them."""
    places = np.arange(len(rows))
    num_windows = _round_up(len(rows) + 1, WINDOWS_ROUND)
    return _pack(rows, places, np.zeros_like(places), num_windows, max(map(len, rows)))


def end_rows(rows: Sequence[Ids], vocabulary: Vocabulary) -> list[Ids]:
    """Put the end symbol behind each row."""
    end = np.array([vocabulary.eos_id], dtype=np.int32)
    return [np.concatenate([row, end]) for row in rows]


def _first_fit(
    sides: Sequence[Sequence[Ids]], lengths: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each sentence's window, and its first column there on each side, (sides, sentences).

    The longest sentences first, each into the first window that has room on every side.
    """
    lens = np.array([[len(row) for row in rows] for rows in sides])
    room = np.repeat(np.array(lengths)[:, None], lens.shape[1], axis=1)  # enough for one each
    windows, starts = np.zeros(lens.shape[1], dtype=np.int64), np.zeros_like(lens)
    num_windows = 1
    for sentence in np.argsort(-lens.max(axis=0), kind="stable"):
        size = lens[:, sentence]
        fits = (size[:, None] <= room[:, :num_windows]).all(axis=0)
        window = int(fits.argmax()) if fits.any() else num_windows
        num_windows = max(num_windows, window + 1)
        windows[sentence], starts[:, sentence] = window, lengths - room[:, window]
        room[:, window] -= size
    return windows, starts


def _count_windows(
    sides: Sequence[Sequence[Ids]], windows: NDArray[np.int64], lengths: Sequence[int]
) -> int:
    """Return how many windows there are on every side, so that each has an empty place."""
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
    """Lay rows of ids out, each at its window and column."""
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
