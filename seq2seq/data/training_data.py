"""The stream of updates of one training process."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from torch import Tensor

from seq2seq.data import batching
from seq2seq.data.batching import Indices, micro_batches, shard
from seq2seq.data.examples import Examples
from seq2seq.data.packing import Batch

T = TypeVar("T")


@dataclass(frozen=True)
class Update:
    """One process's shard of an update."""

    batches: list[Batch]
    """Micro-batches, at least one."""
    next_epoch: int
    """Epoch of the next update."""
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
class TrainingData:
    """The updates of one process, epoch after epoch."""

    examples: Examples
    _: KW_ONLY
    batch_tokens: int
    micro_batch_tokens: int
    seed: int
    process: int = 0
    num_processes: int = 1
    pin_memory: bool = False

    def updates(self, epoch: int, offset: int = 0) -> Iterator[Update]:
        """Yield updates endlessly, starting with the example at `offset` of an epoch."""
        while True:
            order = self.examples.order(self.seed, epoch)
            lens = self.examples.lens(order)
            for indices in batching.updates(order, lens, self.batch_tokens, offset):
                batches, offset = self.load(indices, epoch, offset), offset + len(indices)
                following = (epoch, offset) if offset < len(order) else (epoch + 1, 0)
                yield Update(batches, *following)
            epoch, offset = epoch + 1, 0

    def load(self, indices: Indices, epoch: int, offset: int) -> list[Batch]:
        """Read this process's shard of an update and make its micro-batches."""
        own = shard(self.examples.lens(indices), self.process, self.num_processes)
        load = partial(self.examples.load, seed=self.seed, epoch=epoch)
        if examples := load(indices[own], own + offset):
            plan = micro_batches(*self.examples.sizes(examples), max_tokens=self.micro_batch_tokens)
            batches = [self.examples.collate([examples[i] for i in batch]) for batch in plan]
        else:  # fewer examples than processes: every process must take part in the all-reduce
            first = self.examples.collate(load(indices[:1], np.array([offset])))
            batches = [replace(first, num_labels=0)]
        if self.pin_memory:
            batches = [batch.map(Tensor.pin_memory) for batch in batches]  # for asynchronous copies
        return batches


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
