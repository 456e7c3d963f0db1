"""Which sentences make an update, and how they are laid out in memory.

The order of sentences depends on seed and epoch alone. Updates are cut from it in order, each up
to a budget of target tokens; so `(epoch, offset)` names a place in the data, whatever the number
of processes and the size of a batch. An update's sentences are then sorted by length, cut into
micro-batches that fit into memory, and dealt to the processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from sentencepiece import set_random_generator_seed
from torch import Tensor

from seq2seq.data.store import Ids, Store
from seq2seq.data.tokenizer import Tokenizer, Vocabulary

WINDOW_SENTENCES = 2**15
"""Sentences are sorted by length within windows of so many."""
BLOCK_TOKENS = 2_048
"""Sorted sentences stay together in blocks of about so many target tokens."""
PASS_COST = 256
"""Padding, in tokens, that is worth another pass through the model."""

Order = NDArray[np.int64]


def sentence_order(
    source_lens: NDArray[np.int32],
    target_lens: NDArray[np.int32],
    *,
    corpus_sizes: Sequence[int],
    corpus_weights: Sequence[float],
    seed: int,
    epoch: int,
) -> Order:
    """Return the sentence numbers of one epoch, in the order of training.

    Shuffled, sorted by length within windows, cut into blocks, and the blocks shuffled. A corpus of
    weight 2.3 comes twice, and three tenths of it, drawn anew, once more.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    parts = []
    start = 0
    for size, weight in zip(corpus_sizes, corpus_weights, strict=True):
        whole = int(weight)
        numbers = np.arange(start, start + size)
        extra = random.permutation(numbers)[: round((weight - whole) * size)]
        parts += [numbers] * whole + [extra]
        start += size
    order = random.permutation(np.concatenate(parts))
    if not len(order):  # a tiny corpus of small weight: an epoch has at least one sentence
        order = random.integers(0, start, 1)
    window = np.arange(len(order)) // WINDOW_SENTENCES
    order = order[np.lexsort((source_lens[order], target_lens[order], window))]
    block = np.cumsum(target_lens[order]) // BLOCK_TOKENS
    blocks = np.split(order, np.flatnonzero(np.diff(block)) + 1)
    return np.concatenate([blocks[i] for i in random.permutation(len(blocks))])


def updates(order: Order, target_lens: NDArray[np.int32], batch_tokens: int, offset: int = 0
            ) -> Iterator[Order]:  # fmt: skip
    """Cut the order, from sentence `offset` on, into updates of at most `batch_tokens` tokens.

    A rest of less than half an update joins the last one.
    """
    ends = np.cumsum(target_lens[order], dtype=np.int64)
    start = offset
    while start < len(order):
        done = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, done + batch_tokens, side="right")))
        if ends[-1] - ends[end - 1] < batch_tokens / 2:
            end = len(order)
        yield order[start:end]
        start = end


def micro_batches(
    source_lens: NDArray[np.int32],
    target_lens: NDArray[np.int32],
    *,
    max_tokens: int,
    num_processes: int = 1,
) -> list[list[NDArray[np.int64]]]:
    """Lay one update out for each process: lists of places in the update.

    Sorted by length, the sentences are cut into one piece of about equal work for each process,
    and each piece into micro-batches of at most `max_tokens` padded tokens on the longer side, with
    no more padding than another pass would cost. Every process has at least one, if there are
    sentences enough.
    """
    by_length = np.lexsort((source_lens, target_lens))[::-1]
    work = np.cumsum((source_lens + target_lens)[by_length], dtype=np.int64)
    goals = work[-1] * np.arange(1, num_processes) / num_processes
    cuts = np.searchsorted(work, goals)
    # Not more than there are sentences, and one for each where there are enough.
    first = np.arange(1, num_processes)
    cuts = np.clip(np.maximum(cuts, first), 0, np.maximum(len(by_length) - first[::-1], 0))
    return [
        _pack(piece, source_lens, target_lens, max_tokens) for piece in np.split(by_length, cuts)
    ]


def _pack(
    places: Order, source_lens: NDArray[np.int32], target_lens: NDArray[np.int32], max_tokens: int
) -> list[Order]:
    """Cut sorted sentences into micro-batches."""
    batches: list[list[int]] = []
    longest_source = longest_target = real = 0
    for place in places.tolist():
        source_len, target_len = int(source_lens[place]), int(target_lens[place])
        size = len(batches[-1]) + 1 if batches else 0
        next_source, next_target = max(longest_source, source_len), max(longest_target, target_len)
        padded = size * (next_source + next_target)
        if (
            not size
            or size * max(next_source, next_target) > max_tokens
            or padded - real - source_len - target_len > PASS_COST
        ):
            batches.append([])
            next_source, next_target, real = source_len, target_len, 0
        batches[-1].append(place)
        longest_source, longest_target = next_source, next_target
        real += source_len + target_len
    return [np.array(batch, dtype=np.int64) for batch in batches]


@dataclass(frozen=True)
class Batch:
    """Padded token ids; B sentences, source length S, target length T.

    source: (B, S), each ended. target_input: (B, T), each begun by the start symbol; target_output:
    (B, T), the same tokens one place earlier, each ended. The mask is True on real tokens.
    target_places: (N,), where the N real target tokens stand when rows follow each other; known
    here, so that no GPU is asked for their number.
    """

    source: Tensor
    source_mask: Tensor
    target_input: Tensor
    target_output: Tensor
    target_places: Tensor

    def to(self, device: torch.device) -> Batch:
        """Copy to a device."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in vars(self).values()))

    @property
    def num_target_tokens(self) -> int:
        """Real target tokens, end symbols included."""
        return len(self.target_places)

    @property
    def num_padded_tokens(self) -> int:
        """Tokens of both sides, padding included."""
        return self.source.numel() + self.target_input.numel()


def pad(rows: Sequence[Ids], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids, (B, length), padded on the right, and their mask."""
    lens = np.array([len(row) for row in rows])
    mask = np.arange(max(lens, default=0)) < lens[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = np.concatenate(rows) if rows else []
    return torch.from_numpy(ids), torch.from_numpy(mask)


def end_rows(rows: Sequence[Ids], vocabulary: Vocabulary) -> list[Ids]:
    """Put the end symbol behind each row."""
    return [np.append(row, np.int32(vocabulary.eos_id)) for row in rows]


def collate(source_rows: Sequence[Ids], target_rows: Sequence[Ids], tokenizer: Tokenizer) -> Batch:
    """Pad pairs of id rows, without special symbols, into a batch."""
    source, source_mask = pad(end_rows(source_rows, tokenizer.source), tokenizer.source.pad_id)
    vocabulary = tokenizer.target
    begun = [np.insert(row, 0, np.int32(vocabulary.bos_id)) for row in target_rows]
    target_input, target_mask = pad(begun, vocabulary.pad_id)
    target_output, _ = pad(end_rows(target_rows, vocabulary), vocabulary.pad_id)
    places = target_mask.flatten().nonzero()[:, 0]
    return Batch(source, source_mask, target_input, target_output, places)


@dataclass(frozen=True)
class Update:
    """One process's part of one update."""

    epoch: int
    offset: int
    """Sentences of the epoch's order before this update."""
    num_sentences: int
    num_target_tokens: int
    num_real_tokens: int
    """Of both sides; these three are counted over all processes."""
    ends_epoch: bool
    batches: list[Batch]
    """At least one."""


class TrainingData:
    """The endless stream of updates that one process trains on."""

    def __init__(
        self,
        store: Store,
        tokenizer: Tokenizer,
        *,
        checksum: str = "",
        corpus_sizes: Sequence[int],
        corpus_weights: Sequence[float],
        batch_tokens: int,
        micro_batch_tokens: int,
        bpe_dropout: float,
        seed: int,
        process: int = 0,
        num_processes: int = 1,
    ) -> None:
        self.store, self.tokenizer, self.checksum = store, tokenizer, checksum
        self.corpus_sizes, self.corpus_weights = corpus_sizes, corpus_weights
        self.batch_tokens, self.micro_batch_tokens = batch_tokens, micro_batch_tokens
        self.bpe_dropout, self.seed = bpe_dropout, seed
        self.process, self.num_processes = process, num_processes

    @property
    def longest_sides(self) -> tuple[int, int]:
        """Tokens of the longest source and of the longest target, end symbols included."""
        return int(self.store.source_lens.max()), int(self.store.target_lens.max())

    @property
    def source_ratio(self) -> float:
        """Source tokens for each target token, at least 1."""
        source = self.store.source_lens.sum(dtype=np.int64)
        return max(1.0, float(source / self.store.target_lens.sum(dtype=np.int64)))

    def order(self, epoch: int) -> Order:
        """Return the sentence numbers of an epoch, in order."""
        return sentence_order(
            self.store.source_lens,
            self.store.target_lens,
            corpus_sizes=self.corpus_sizes,
            corpus_weights=self.corpus_weights,
            seed=self.seed,
            epoch=epoch,
        )

    def epoch(self, epoch: int, offset: int = 0) -> Iterator[Update]:
        """Yield the updates of an epoch from the sentence at `offset` on."""
        order = self.order(epoch)
        for numbers in updates(order, self.store.target_lens, self.batch_tokens, offset):
            end = offset + len(numbers)
            yield self._load(numbers, epoch, offset, ends_epoch=end == len(order))
            offset = end

    def _load(self, numbers: Order, epoch: int, offset: int, *, ends_epoch: bool) -> Update:
        sources, targets = self.store.pairs(numbers)
        if self.bpe_dropout:
            # Every process draws the same pieces for the whole update, and so plans it alike.
            set_random_generator_seed(
                (self.seed * 1_000_003 + epoch) * 1_000_003 + offset & 0xFFFFFFFF
            )
            sources = self._resample(self.tokenizer.source, sources)
            targets = self._resample(self.tokenizer.target, targets)
        source_lens = np.array([len(row) + 1 for row in sources], dtype=np.int32)
        target_lens = np.array([len(row) + 1 for row in targets], dtype=np.int32)
        plan = micro_batches(
            source_lens,
            target_lens,
            max_tokens=self.micro_batch_tokens,
            num_processes=self.num_processes,
        )
        batches = [
            collate([sources[i] for i in places], [targets[i] for i in places], self.tokenizer)
            for places in plan[self.process]
        ]
        if not batches:  # fewer sentences than processes; every process must take part
            idle = collate(sources[:1], targets[:1], self.tokenizer)
            batches = [replace(idle, target_places=idle.target_places[:0])]
        return Update(
            epoch=epoch,
            offset=offset,
            num_sentences=len(numbers),
            num_target_tokens=int(target_lens.sum()),
            num_real_tokens=int(source_lens.sum() + target_lens.sum()),
            ends_epoch=ends_epoch,
            batches=batches,
        )

    def _resample(self, vocabulary: Vocabulary, rows: Sequence[Ids]) -> list[Ids]:
        texts = vocabulary.decode([row.tolist() for row in rows])
        return [np.array(ids, dtype=np.int32) for ids in vocabulary.sample(texts, self.bpe_dropout)]
