"""Training examples of each task, and the updates that a training process makes of them."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from seq2seq.config import Config
from seq2seq.data import batching
from seq2seq.data.augmentation import Augmentation, BPEDropout, generators
from seq2seq.data.batching import (
    Batch,
    Indices,
    Lens,
    add_bos,
    collate,
    context_window_batch,
    micro_batches,
    pack,
    sentence_order,
    shard,
    truncate,
    worst_case_lens,
)
from seq2seq.data.store import Ids, PreparedData
from seq2seq.data.vocabulary import Vocabulary
from seq2seq.errors import UserError

T = TypeVar("T")

IdsPair = tuple[Ids, Ids]
"""Source and target ids, without special symbols."""

PlannedUpdate = tuple[Indices, int, int, int, int]
"""Indices of an update's examples on all processes; epoch and offset of this update; epoch and
offset of the next update."""

Tokens = NDArray[np.unsignedinteger]
"""Memory-mapped token ids of a text."""

_cached_dropout = cache(BPEDropout)


class Examples(ABC):
    """Training examples, read on demand by index."""

    checksum: str
    needs_workers = False
    """Whether a thread is too slow to load examples for a GPU."""

    @abstractmethod
    def order(self, seed: int, epoch: int) -> Indices:
        """Return the indices of the examples of one epoch, in training order."""

    @abstractmethod
    def lens(self, indices: Indices) -> Lens:
        """Return the number of tokens of each example that count towards training.batch_tokens."""

    @abstractmethod
    def load(self, indices: Indices, positions: Indices, *, seed: int, epoch: int) -> Sequence[Any]:
        """Read examples. positions: position of each example in the epoch.

        Random choices depend only on seed, epoch and position.
        """

    @abstractmethod
    def sizes(self, examples: Sequence[Any]) -> Sequence[Lens]:
        """Return the number of tokens of each example in each input of the model."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """Make a batch of examples."""

    @abstractmethod
    def worst_case(self, max_tokens: int) -> Batch:
        """Return the batch with up to `max_tokens` per input that needs the most memory."""


class Pairs(Examples):
    """Sentence pairs of one or more corpora; `lens` counts target tokens."""

    def __init__(self, config: Config, data: PreparedData) -> None:
        self.store, self.tokenizer = data.store("train"), data.tokenizer
        self.checksum = data.checksum("train")
        self.context = config.model.context
        self._corpus_sizes = data.facts("train")["pairs_per_corpus"]
        self._corpus_weights = config.pairs.weights(self._corpus_sizes)
        self._augment = Augmentation(
            config.pairs, self.store, self.tokenizer, self._corpus_sizes, self.longest
        )
        self._bpe_dropout = config.tokenizer.bpe_dropout
        self.needs_workers = bool(self._bpe_dropout or self._augment.rates.any())

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest input of the model."""
        return int(max(lens.max() for lens in self.store.lens))

    def order(self, seed: int, epoch: int) -> Indices:
        return sentence_order(self._corpus_sizes, self._corpus_weights, seed=seed, epoch=epoch)

    def lens(self, indices: Indices) -> Lens:
        return self.store.lens[1][indices]

    def load(self, indices: Indices, positions: Indices, *, seed: int, epoch: int) -> list[IdsPair]:
        sources, targets = self.store.pairs(indices)
        if self._augment.rates.any():
            sources, targets = self._augment(
                sources, targets, indices, positions, seed=seed, epoch=epoch
            )
        if self._bpe_dropout:
            random = generators(positions, seed=seed, epoch=epoch)
            sources = self._resample(sources, self.tokenizer.source, random, self.longest - 1)
            targets = self._resample(targets, self.tokenizer.target, random, self.longest - 1)
        return list(zip(sources, targets, strict=True))

    def _resample(
        self,
        texts: Sequence[Ids],
        vocabulary: Vocabulary,
        random: Sequence[np.random.Generator],
        longest: int,
    ) -> list[Ids]:
        """Segment texts again with BPE-dropout.

        A text that would exceed `longest` tokens is not changed: the memory dry run and learned
        positions are limited to that length.
        """
        dropout = _cached_dropout(vocabulary, self._bpe_dropout)
        pairs = zip(map(dropout, texts, random), texts, strict=True)
        return [new if len(new) <= longest else old for new, old in pairs]

    def sizes(self, examples: Sequence[IdsPair]) -> Sequence[Lens]:
        return [np.array([len(ids) + 1 for ids in side]) for side in zip(*examples, strict=True)]

    def collate(self, examples: Sequence[IdsPair]) -> Batch:
        sources, targets = zip(*examples, strict=True)
        return collate(sources, targets, self.tokenizer)

    def worst_case(self, max_tokens: int) -> Batch:
        # Source and target are equally long: either may have the longest sentence.
        return self.collate([(text, text) for text in self.worst_case_texts(max_tokens)])

    def worst_case_texts(self, max_tokens: int) -> list[Ids]:
        """Return texts of the lengths for which attention needs the most memory."""
        lens, unk_id = worst_case_lens(self.longest, max_tokens), self.tokenizer.source.unk_id
        return [np.full(length - 1, unk_id, dtype=np.int32) for length in lens]


class LabelledTexts(Pairs):
    """Texts with labels, for a classifier; long texts are truncated in the middle."""

    @cached_property
    def longest(self) -> int:
        return min(self.context, int(self.store.lens[0].max()))

    def lens(self, indices: Indices) -> Lens:
        return np.minimum(self.store.lens[0][indices], self.context)

    def load(self, indices: Indices, positions: Indices, *, seed: int, epoch: int) -> list[IdsPair]:
        texts, labels = self.store.pairs(indices)
        texts = [truncate(text, self.context - 1) for text in texts]
        if self._bpe_dropout:
            random = generators(positions, seed=seed, epoch=epoch)
            texts = self._resample(texts, self.tokenizer.source, random, 2 * self.context)
            texts = [truncate(text, self.context - 1) for text in texts]
        return list(zip(texts, labels, strict=True))

    def sizes(self, examples: Sequence[IdsPair]) -> Sequence[Lens]:
        return [np.array([len(text) + 1 for text, _ in examples])]

    def collate(self, examples: Sequence[IdsPair]) -> Batch:
        texts, labels = zip(*examples, strict=True)
        packed = pack(add_bos(texts, self.tokenizer.source))
        label_ids = np.concatenate(labels).astype(np.int64)
        return Batch((packed,), torch.from_numpy(label_ids), len(texts))

    def worst_case(self, max_tokens: int) -> Batch:
        label = np.zeros(1, dtype=np.int32)
        return self.collate([(text, label) for text in self.worst_case_texts(max_tokens)])


class ContextWindows(Examples):
    """Random windows of a long text, of `context` + 1 tokens, for a language model.

    The number of an example is the start of its window. An epoch has about as many tokens as the
    text.
    """

    def __init__(self, config: Config, data: PreparedData) -> None:
        self.tokens, self.checksum = data.tokens("train"), data.checksum("train")
        self.context = config.model.context
        if len(self.tokens) <= self.context:
            raise UserError(
                f"a text of {len(self.tokens)} tokens is too short for one window of model.context="
                f"{self.context} and the token after it: use a longer text or shorter context"
            )

    def order(self, seed: int, epoch: int) -> Indices:
        random = np.random.Generator(np.random.PCG64([seed, epoch]))
        count = len(self.tokens) - self.context
        return random.integers(0, count, max(1, count // self.context))

    def lens(self, indices: Indices) -> Lens:
        return np.full(len(indices), self.context, dtype=np.int32)

    def load(self, indices: Indices, positions: Indices, *, seed: int, epoch: int) -> list[Tokens]:
        return [self.tokens[start : start + self.context + 1] for start in indices.tolist()]

    def sizes(self, examples: Sequence[Tokens]) -> Sequence[Lens]:
        return [np.full(len(examples), self.context)]

    def collate(self, examples: Sequence[Tokens]) -> Batch:
        return context_window_batch(np.stack(examples))

    def worst_case(self, max_tokens: int) -> Batch:
        count = max(1, max_tokens // self.context)  # all windows need the same memory
        return context_window_batch(np.zeros((count, self.context + 1), dtype=np.int64))


def examples_of(config: Config, data: PreparedData) -> Examples:
    """Return the training examples of a recipe's task."""
    kinds = {"language_model": ContextWindows, "classification": LabelledTexts}
    return kinds.get(config.task, Pairs)(config, data)


@dataclass(frozen=True)
class Update:
    """One process's shard of an update."""

    batches: list[Batch]
    """Micro-batches, at least one."""
    next_epoch: int
    next_offset: int
    """Number of examples of this epoch before the next update."""

    @property
    def num_labels(self) -> int:
        """Number of labels of this process's shard."""
        return sum(batch.num_labels for batch in self.batches)

    @property
    def num_tokens(self) -> int:
        """Number of target tokens (else input tokens) in the shard; 0 for the dummy batch."""
        return sum(int(x.inputs[-1].lens.sum()) for x in self.batches) if self.num_labels else 0


@dataclass
class TrainingData(Dataset[Update]):
    """The updates of one process, epoch after epoch."""

    examples: Examples
    _: KW_ONLY
    batch_tokens: int
    micro_batch_tokens: int
    seed: int
    process: int = 0
    num_processes: int = 1
    pin_memory: bool = False
    num_workers: int = 0
    """Number of further processes that load updates. With 0 the calling thread loads them."""

    def updates(self, epoch: int, offset: int = 0) -> Generator[Update, None, None]:
        """Yield updates endlessly, starting with the example at `offset` of an epoch."""
        updates = map(self.__getitem__, self._plan(epoch, offset))
        if self.num_workers:
            loader = DataLoader(
                self,
                batch_size=None,
                sampler=self._plan(epoch, offset),
                num_workers=self.num_workers,
                multiprocessing_context="spawn",  # a fork would copy the state of the GPU
                collate_fn=pickle.dumps,  # tensors would need shared memory, which containers lack
                generator=torch.Generator(),
            )
            updates = map(pickle.loads, loader)
        for update in updates:
            if self.pin_memory:  # for asynchronous copies
                update = replace(update, batches=[x.map(Tensor.pin_memory) for x in update.batches])
            yield update

    def _plan(self, epoch: int, offset: int) -> Iterator[PlannedUpdate]:
        while True:
            order = self.examples.order(self.seed, epoch)
            lens = self.examples.lens(order)
            for indices in batching.updates(order, lens, self.batch_tokens, offset):
                end = offset + len(indices)
                following = (epoch, end) if end < len(order) else (epoch + 1, 0)
                yield indices, epoch, offset, *following
                offset = end
            epoch, offset = epoch + 1, 0

    def __getitem__(self, planned: PlannedUpdate) -> Update:
        """Read this process's shard of an update and make its micro-batches."""
        indices, epoch, offset, *following = planned
        own = shard(self.examples.lens(indices), self.process, self.num_processes)
        load = partial(self.examples.load, seed=self.seed, epoch=epoch)
        if examples := load(indices[own], own + offset):
            lens = self.examples.sizes(examples)
            batches = [
                self.examples.collate([examples[i] for i in batch])
                for batch in micro_batches(*lens, max_tokens=self.micro_batch_tokens)
            ]
        else:  # fewer examples than processes: every process must take part in the all-reduce
            first = self.examples.collate(load(indices[:1], np.array([offset])))
            batches = [replace(first, num_labels=0)]
        return Update(batches, *following)


def prefetched(items: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield the items in order; a thread computes `depth` items in advance.

    Exceptions of the thread are raised here. Closing the iterator joins the thread: a thread that
    outlives the interpreter may abort the process.
    """
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        waiting = deque(thread.submit(next, iterator, end) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, iterator, end))
            yield item  # type: ignore[misc]
