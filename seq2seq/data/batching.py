"""Batches: order of sentences, updates, micro-batches, and sentences packed without padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

Indices = NDArray[np.int64]
"""Indices of sentences: in the training data or in a list."""
Lens = NDArray[np.integer]


def sentence_order(
    corpus_sizes: Sequence[int], corpus_weights: Sequence[float], *, seed: int, epoch: int
) -> Indices:
    """Return the indices of the sentences of one epoch, in training order.

    A corpus of weight 2.3 occurs twice, and a random 30 % of its sentences a third time.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    parts = []
    start = 0
    for size, weight in zip(corpus_sizes, corpus_weights, strict=True):
        whole = int(weight)
        indices = np.arange(start, start + size)
        extra = random.permutation(indices)[: round((weight - whole) * size)]
        parts += [indices] * whole + [extra]
        start += size
    order = random.permutation(np.concatenate(parts))
    # An epoch has at least one sentence, even of a tiny corpus with a small weight.
    return order if len(order) else random.integers(0, start, 1)


def updates(order: Indices, lens: Lens, batch_tokens: int, offset: int = 0) -> Iterator[Indices]:
    """Split the order, from sentence `offset` on, into updates of at most `batch_tokens` tokens.

    lens: number of tokens of each sentence in `order`. An update has at least one sentence, and the
    last update includes a remainder of less than half of `batch_tokens`.
    """
    ends = np.cumsum(lens, dtype=np.int64)
    start = offset
    while start < len(order):
        done = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, done + batch_tokens, side="right")))
        if ends[-1] - ends[end - 1] < batch_tokens / 2:
            end = len(order)
        yield order[start:end]
        start = end


def shard(lens: Lens, process: int, num_processes: int) -> Indices:
    """Return the ascending indices of the sentences of an update that one process trains on.

    Sentences are sorted by length and assigned round-robin, so that shards are about equal.
    """
    return np.sort(np.argsort(-lens, kind="stable")[process::num_processes])


def micro_batches(*input_lens: Lens, max_tokens: int) -> list[Indices]:
    """Split a process's shard of an update into micro-batches: arrays of indices into the shard.

    Sentences are sorted by length and assigned round-robin to the smallest number of micro-batches
    in which no input has more than `max_tokens` tokens, except for a single longer sentence. So a
    micro-batch has sentences of all lengths: short ones fill the rows of attention
    (`row_lens`) that long ones leave partly empty.
    input_lens: for each input of the model, the number of tokens of each sentence.
    """
    lens = np.stack(input_lens)

    def size(indices: Indices) -> int:
        return int(lens[:, indices].sum(axis=1).max())

    order = np.argsort(-lens.max(axis=0), kind="stable")
    count = max(1, -(-size(order) // max_tokens))
    while count < len(order) and any(size(order[i::count]) > max_tokens for i in range(count)):
        count += 1
    return [order[i::count] for i in range(min(count, len(order)))]


def worst_case_lens(longest: int, max_tokens: int) -> list[int]:
    """Return sentence lengths, `max_tokens` in all, for which attention needs the most memory.

    The longest sentence determines the length of rows. The other sentences are as short as possible
    while a row holds no more of them than of the longest: that leaves the most padding, up to half
    of a row. The last sentence has the remaining tokens.
    """
    [row_len] = row_lens([longest])
    # The shortest length that also fits only row_len // longest times into a row.
    other = row_len // (row_len // longest + 1) + 1
    lens = [longest] + [other] * max(0, (max_tokens - longest) // other)
    rest = max_tokens - sum(lens)
    return [*lens, rest] if rest > 0 else lens


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
    source, target, label = pack(sources), pack(targets), pack(labels)
    return Batch((source, target), label.ids, int(target.lens.sum()))


def collate(sources: Sequence[Ids], targets: Sequence[Ids], tokenizer: Tokenizer) -> Batch:
    """Make a batch of sentence pairs without start and end symbols."""
    if tokenizer.source.language_first:
        targets = [
            np.concatenate([source[:1], x]) for source, x in zip(sources, targets, strict=True)
        ]
        sources = [source[1:] for source in sources]
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
