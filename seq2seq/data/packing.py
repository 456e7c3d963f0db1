"""Pack the sentences of a batch without padding.

Token-wise operations run on the concatenated tokens of all sentences. Only attention needs to know
where a sentence begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seq2seq.data.store import Ids
from seq2seq.data.tokenizer import Tokenizer
from seq2seq.data.vocabulary import Vocabulary

TOKENS_ROUND = 128
"""The number of tokens is a multiple of this, so that few shapes occur: for a new shape, oneDNN
compiles a kernel, which takes longer than running it."""
ROW_LEN = 48
"""Approximate length of the rows of attention, unless a sentence is longer. Shorter rows have more
overhead; longer rows are masked to a larger part."""
LENGTH_ROUND = 32
"""The length of a row is a multiple of this, so that few shapes occur."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Concatenated sentences of one model input, N tokens.

    ids, positions: (N,), token ids and their positions in the sentence, with up to TOKENS_ROUND
    tokens of padding at the end. offsets: (sentences + 2,), index of the first token of each
    sentence and of the padding, and N. lens: number of tokens of each sentence, in CPU memory.
    is_grid: whether all sentences have equal length and there is no padding.
    """

    ids: Tensor
    positions: Tensor
    offsets: Tensor
    lens: NDArray[np.int64]
    is_grid: bool = False

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.lens)

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest sentence."""
        return int(self.lens.max())

    def to(self, device: torch.device) -> Packed:
        """Copy to a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, copy: Callable[[Tensor], Tensor]) -> Packed:
        """Apply a function to all tensors."""
        tensors = copy(self.ids), copy(self.positions), copy(self.offsets)
        return Packed(*tensors, self.lens, self.is_grid)


@dataclass(frozen=True)
class Batch:
    """Packed inputs of a model and labels.

    inputs: arguments of the model's `forward`; for translation, the source with end symbols and the
    target with start symbols. labels: (N,); all but the first `num_labels` are padding. For
    translation, labels are the next target tokens, with end symbols.
    """

    inputs: tuple[Packed, ...]
    labels: Tensor
    num_labels: int

    def to(self, device: torch.device) -> Batch:
        """Copy to a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, copy: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to all tensors."""
        inputs = tuple(packed.map(copy) for packed in self.inputs)
        return Batch(inputs, copy(self.labels), self.num_labels)


def pack(sentences: Sequence[Ids]) -> Packed:
    """Concatenate sentences."""
    lens = np.array([len(sentence) for sentence in sentences])
    num_tokens = int(lens.sum())
    # At least one token of padding: attention in rows needs it.
    size = round_up(num_tokens + 1, TOKENS_ROUND)
    ids, positions = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    ids[:num_tokens] = np.concatenate(sentences)
    positions[:num_tokens] = np.arange(num_tokens) - np.repeat(np.cumsum(lens) - lens, lens)
    offsets = np.cumsum([0, *lens, size - num_tokens], dtype=np.int32)
    tensors = torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(offsets)
    return Packed(*tensors, lens)


def row_lens(longest: Sequence[int]) -> list[int]:
    """Return the row length of queries and of keys, given the lengths of their longest sentences.

    It is about a multiple of the longest sentence, so that sentences of similar length fill a row.
    """
    multiple = max(1, round(ROW_LEN / max(longest)))
    return [round_up(multiple * length, LENGTH_ROUND) for length in longest]


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


def pack_grid(ids: NDArray[np.int64]) -> Packed:
    """Concatenate sentences of equal length, (sentences, tokens), without padding."""
    count, length = ids.shape
    offsets = np.append(np.arange(count + 1) * length, ids.size).astype(np.int32)
    positions = np.arange(ids.size) % length
    tensors = torch.from_numpy(ids.reshape(-1)), torch.from_numpy(positions)
    lens = np.full(count, length)
    return Packed(*tensors, torch.from_numpy(offsets), lens, is_grid=True)


def pack_pairs(sources: Sequence[Ids], targets: Sequence[Ids], labels: Sequence[Ids]) -> Batch:
    """Pack encoder input, decoder input and labels."""
    source, target = pack(sources), pack(targets)
    padded_labels = np.zeros(len(target.ids), dtype=np.int64)
    num_labels = sum(map(len, targets))
    padded_labels[:num_labels] = np.concatenate(labels)
    return Batch((source, target), torch.from_numpy(padded_labels), num_labels)


def collate(sources: Sequence[Ids], targets: Sequence[Ids], tokenizer: Tokenizer) -> Batch:
    """Make a batch of sentence pairs without special symbols."""
    return pack_pairs(
        add_eos(sources, tokenizer.source),
        add_bos(targets, tokenizer.target),
        add_eos(targets, tokenizer.target),
    )


def add_bos(sentences: Sequence[Ids], vocabulary: Vocabulary) -> list[Ids]:
    """Prepend the start symbol to each sentence."""
    start = np.array([vocabulary.bos_id], dtype=np.int32)
    return [np.concatenate([start, ids]) for ids in sentences]  # np.insert and np.append are slow


def add_eos(sentences: Sequence[Ids], vocabulary: Vocabulary) -> list[Ids]:
    """Append the end symbol to each sentence."""
    end = np.array([vocabulary.eos_id], dtype=np.int32)
    return [np.concatenate([ids, end]) for ids in sentences]


def truncate(text: Ids, max_len: int) -> Ids:
    """Truncate a text to `max_len` tokens: a quarter from its beginning, the rest from its end.

    Beginning and end are more informative than the middle (Sun et al. 2019, section 5.3.1).
    """
    if len(text) <= max_len:
        return text
    head = max_len // 4
    return np.concatenate([text[:head], text[len(text) - (max_len - head) :]])


def context_window_batch(windows: NDArray[np.unsignedinteger] | NDArray[np.int64]) -> Batch:
    """Make a batch of windows, (windows, context + 1); each token's label is the next token."""
    windows = windows.astype(np.int64)
    labels = torch.from_numpy(windows[:, 1:].reshape(-1).copy())
    return Batch((pack_grid(windows[:, :-1]),), labels, len(labels))
