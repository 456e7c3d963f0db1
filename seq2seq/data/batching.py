"""Which sentences make an update, and how they are laid out in memory.

The order of sentences depends on seed and epoch alone. Updates are cut from it in order, each up
to a budget of target tokens; so `(epoch, offset)` names a place in the data, whatever the number
of processes and the size of a batch. An update's sentences are then sorted by length, dealt
to the processes, and again to micro-batches that fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from sentencepiece import set_random_generator_seed

from seq2seq.data.packing import Batch, collate
from seq2seq.data.store import Ids, Store
from seq2seq.data.tokenizer import Tokenizer, Vocabulary

SHORT_LEN = 64
"""Sentences of up to so many tokens share micro-batches; so do those of up to twice, four times ...
as many."""

Order = NDArray[np.int64]


def sentence_order(
    *,
    corpus_sizes: Sequence[int],
    corpus_weights: Sequence[float],
    seed: int,
    epoch: int,
) -> Order:
    """Return the sentence numbers of one epoch, in the order of training.

    A corpus of weight 2.3 comes twice, and three tenths of it, drawn anew, once more.
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
    # A tiny corpus of small weight: an epoch has at least one sentence.
    return order if len(order) else random.integers(0, start, 1)


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
) -> list[list[Order]]:
    """Lay one update out for each process: lists of places in the update.

    The sentences are sorted by length and dealt like cards, to the processes and then to each one's
    micro-batches, of at most `max_tokens` on the longer side. Long sentences have micro-batches of
    their own, since the longest decides how much attention looks at.
    """
    longest = np.maximum(source_lens, target_lens)
    by_length = np.argsort(-longest, kind="stable")
    lens = np.stack([source_lens, target_lens])
    return [_cut(by_length[i::num_processes], lens, max_tokens) for i in range(num_processes)]


def _cut(places: Order, lens: NDArray[np.int32], max_tokens: int) -> list[Order]:
    """Deal sorted sentences out to micro-batches."""
    batches: list[Order] = []
    doublings = _doublings(lens[:, places].max(axis=0))
    for group in np.split(places, np.flatnonzero(np.diff(doublings)) + 1):
        count = max(1, -(-_size(group, lens) // max_tokens))
        hands = [group[i::count] for i in range(count)]
        # Each has sentences of all lengths, so that they fill windows well.
        while len(hands) < len(group) and any(_size(hand, lens) > max_tokens for hand in hands):
            hands = [group[i :: len(hands) + 1] for i in range(len(hands) + 1)]
        batches += [hand for hand in hands if len(hand)]
    return batches


def _doublings(lens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return how often SHORT_LEN has to be doubled to be as long."""
    return np.frexp((lens - 1) // SHORT_LEN)[1]


def shortest_beside(longest: int) -> int:
    """Return the length of the shortest sentence that may share a micro-batch with `longest`."""
    doublings = int(_doublings(np.array([longest]))[0])
    return SHORT_LEN * 2 ** (doublings - 1) + 1 if doublings else 1


def _size(places: Order, lens: NDArray[np.int32]) -> int:
    """Return the tokens of these sentences on the longer side."""
    return int(lens[:, places].sum(axis=1).max())


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
        pin_memory: bool = False,
    ) -> None:
        self.store, self.tokenizer, self.checksum = store, tokenizer, checksum
        self.corpus_sizes, self.corpus_weights = corpus_sizes, corpus_weights
        self.batch_tokens, self.micro_batch_tokens = batch_tokens, micro_batch_tokens
        self.bpe_dropout, self.seed = bpe_dropout, seed
        self.process, self.num_processes = process, num_processes
        self.pin_memory = pin_memory

    @property
    def longest_sides(self) -> tuple[int, int]:
        """Tokens of the longest source and of the longest target, end symbols included."""
        return int(self.store.source_lens.max()), int(self.store.target_lens.max())

    @property
    def source_ratio(self) -> float:
        """Source tokens for each target token, at least 1."""
        source = self.store.source_lens.sum(dtype=np.int64)
        return max(1.0, float(source / self.store.target_lens.sum(dtype=np.int64)))

    def batches_per_update(self, num_updates: int = 20) -> float:
        """Return how many micro-batches each process makes of an update, about."""
        cut = updates(self.order(0), self.store.target_lens, self.batch_tokens, 0)
        counts = [
            len(part)
            for numbers in islice(cut, num_updates)
            for part in micro_batches(
                self.store.source_lens[numbers],
                self.store.target_lens[numbers],
                max_tokens=self.micro_batch_tokens,
                num_processes=self.num_processes,
            )
        ]
        return sum(counts) / max(1, len(counts))

    def order(self, epoch: int) -> Order:
        """Return the sentence numbers of an epoch, in order."""
        return sentence_order(
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
            batches = [replace(idle, num_target_tokens=0)]
        if self.pin_memory:
            batches = [batch.pin() for batch in batches]
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
