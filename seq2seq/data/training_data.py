"""The stream of updates of one training process."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

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


class PlannedUpdate(NamedTuple):
    """Examples of an update of all processes, and where it and the next one begin."""

    indices: Indices
    epoch: int
    offset: int
    next_epoch: int
    next_offset: int


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
                yield PlannedUpdate(indices, epoch, offset, *following)
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
