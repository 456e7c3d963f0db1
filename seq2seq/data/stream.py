"""The endless stream of updates that one process trains on, whatever the family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seq2seq.data.batching import Order, micro_batches, updates
from seq2seq.data.packing import Batch

Lens = NDArray[np.int32]


class Examples(Protocol):
    """What a family trains on: numbered examples, read when their turn has come."""

    checksum: str
    """Of the training data."""
    label_is_token: bool
    """True: each token that `lens` counts has a label; False: each text has one."""

    @property
    def longest(self) -> int:
        """Tokens of the longest example, on its longer side."""

    @property
    def source_ratio(self) -> float:
        """Tokens of the longer side for each token that `lens` counts, about."""

    def order(self, seed: int, epoch: int) -> Order:
        """Return the numbers of one epoch's examples, in the order of training."""

    def lens(self, numbers: Order) -> Lens:
        """Return the number of tokens of each example that training.batch_tokens counts."""

    def load(self, numbers: Order, *, seed: int, epoch: int, offset: int) -> Sequence[Any]:
        """Read examples.

        What is drawn anew each time depends on the seed, the epoch and each example's place in it
        alone; offset: the place of the first.
        """

    def sizes(self, examples: Sequence[Any]) -> tuple[Lens, Lens]:
        """Return how many tokens each example has on either side."""

    def collate(self, examples: Sequence[Any]) -> Batch:
        """Lay examples out as a batch."""

    def worst(self, max_tokens: int) -> Batch:
        """Return the batch of so many tokens, on the longer side, that needs the most memory."""

    def describe(self, numbers: Order) -> dict[str, list[str]]:
        """Return the examples' texts, for people."""


@dataclass(frozen=True)
class Update:
    """One process's part of one update."""

    epoch: int
    offset: int
    """Examples of the epoch's order before this update."""
    num_sentences: int
    num_labels: int
    """What the loss is divided by."""
    num_real_tokens: int
    """Of all sides; this, the labels and the sentences are counted over all processes."""
    ends_epoch: bool
    batches: list[Batch]
    """At least one."""


class TrainingData:
    """The updates of one process, epoch after epoch."""

    def __init__(
        self,
        examples: Examples,
        *,
        batch_tokens: int,
        micro_batch_tokens: int,
        seed: int,
        process: int = 0,
        num_processes: int = 1,
        pin_memory: bool = False,
    ) -> None:
        self.examples = examples
        self.batch_tokens, self.micro_batch_tokens = batch_tokens, micro_batch_tokens
        self.seed, self.process, self.num_processes = seed, process, num_processes
        self.pin_memory = pin_memory

    def order(self, epoch: int) -> Order:
        """Return the numbers of an epoch's examples, in order."""
        return self.examples.order(self.seed, epoch)

    def epoch(self, epoch: int, offset: int = 0) -> Iterator[Update]:
        """Yield the updates of an epoch from the example at `offset` on."""
        order = self.order(epoch)
        for numbers in updates(order, self.examples.lens(order), self.batch_tokens, offset):
            end = offset + len(numbers)
            yield self._load(numbers, epoch, offset, ends_epoch=end == len(order))
            offset = end

    def batches_per_update(self, num_updates: int = 3) -> float:
        """Return how many micro-batches each process makes of an update, about."""
        order = self.order(0)
        cut = updates(order, self.examples.lens(order), self.batch_tokens)
        counts = [
            len(part)
            for numbers in islice(cut, num_updates)
            for part in self._plan(self.examples.load(numbers, seed=self.seed, epoch=0, offset=0))
        ]
        return sum(counts) / max(1, len(counts))

    def _plan(self, examples: Sequence[Any]) -> list[list[Order]]:
        return micro_batches(
            *self.examples.sizes(examples),
            max_tokens=self.micro_batch_tokens,
            num_processes=self.num_processes,
        )

    def _load(self, numbers: Order, epoch: int, offset: int, *, ends_epoch: bool) -> Update:
        # Every process draws the same for the whole update, and so plans it alike.
        examples = self.examples.load(numbers, seed=self.seed, epoch=epoch, offset=offset)
        batches = [
            self.examples.collate([examples[i] for i in places])
            for places in self._plan(examples)[self.process]
        ]
        if not batches:  # fewer examples than processes; every process must take part
            batches = [replace(self.examples.collate(examples[:1]), num_labels=0)]
        if self.pin_memory:
            batches = [batch.pin() for batch in batches]
        source, target = (int(lens.sum()) for lens in self.examples.sizes(examples))
        return Update(
            epoch=epoch,
            offset=offset,
            num_sentences=len(numbers),
            num_labels=target if self.examples.label_is_token else len(numbers),
            num_real_tokens=source + target,
            ends_epoch=ends_epoch,
            batches=batches,
        )
