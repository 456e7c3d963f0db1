"""The processes that share one command: who is who, and what they tell one another.

Everything here goes through the hosts (gloo), never through a GPU, so that it makes none wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

from seq2seq.errors import SharedError
from seq2seq.machine.threads import keep_threads

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""How long a process waits for another that may have lost its power or its network."""
LONG_PATIENCE = timedelta(hours=24)
"""The same where the other one has work of its own: it prepares data, or waits for input."""


@dataclass(frozen=True)
class Processes:
    """This process's number among `count`, and the exchange with the others."""

    index: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: Any = None

    @classmethod
    def join(cls, patience: timedelta = PATIENCE) -> Processes:
        """Join the processes that `accelerate launch` or `torchrun` started; alone without them.

        The state that comes first decides on device and processes for all that follow, those of
        Accelerate too.
        """
        cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        state = PartialState(cpu=cpu, timeout=patience)
        if state.num_processes == 1:
            return cls(device=state.device)
        keep_threads()  # the launcher has shared the cores out
        return cls(state.process_index, state.num_processes, state.device, _host_group(patience))

    @property
    def is_main(self) -> bool:
        """Whether this one writes and speaks for all."""
        return self.index == 0

    def shard(self, count: int) -> range:
        """Return this process's places out of `count`: one in `self.count`."""
        return range(self.index, count, self.count)

    def all_gather(self, values: Sequence[T]) -> list[T]:
        """Put together, in order, what every process made of its `shard`."""
        if self.count == 1:
            return list(values)
        shards: list[Any] = [None] * self.count
        dist.all_gather_object(shards, list(values), group=self.group)
        whole: list[Any] = [None] * sum(map(len, shards))
        for index, shard in enumerate(shards):
            whole[index :: self.count] = shard
        return whole

    def broadcast(self, value: T) -> T:
        """Return the main process's value on all of them."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def all_reduce_max(self, *numbers: float) -> list[float]:
        """Return the largest of each number over all processes."""
        if self.count == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.count == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def barrier(self) -> None:
        """Wait for the others."""
        if self.count > 1:
            dist.barrier(group=self.group)

    def require_alike(self, value: object, advice: str) -> None:
        """Raise SharedError unless this value is the main process's on all of them.

        advice: what the others have instead, and what to do.
        """
        alike = self.all_gather([value == self.broadcast(value)])
        if not all(alike):
            numbers = ", ".join(str(index) for index, found in enumerate(alike) if not found)
            raise SharedError(f"process {numbers} of {self.count}: {advice}")

    def require_shared(self, folder: Path) -> None:
        """Make a folder for several processes; raise SharedError unless all of them see it."""
        if self.count == 1:
            return
        mark = folder / f".{uuid4().hex}.tmp"
        if self.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
        told = self.broadcast(mark)  # when it is there
        try:
            self.require_alike(
                (folder / told.name).exists(),
                f"does not see {told.parent} as the main process does; processes on several "
                "machines need that folder on a file system that all of them see",
            )
        finally:
            if self.is_main:
                mark.unlink()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process go through a block, and then the others, however long it takes."""
        if self.count == 1:
            yield
            return
        self.barrier()  # where a group is made, a process that has ended is waited for all the time
        group = dist.new_group(backend="gloo", timeout=LONG_PATIENCE)
        if not self.is_main:
            dist.barrier(group=group)
        yield
        if self.is_main:
            dist.barrier(group=group)

    def exit(self, code: int = 0) -> None:
        """End this process, if it is one of several, as its command's last act.

        At once, without taking torch's threads down: about one time in thirty that ends in an abort
        after all work is done, and the launcher would call the run a failure.
        """
        if self.count > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def peer_is_lost(error: Exception) -> bool:
    """Whether an exchange failed because another process has ended, and said itself why."""
    words = ("closed by peer", "Connection reset by peer", "Broken pipe")
    return any(word in str(error) for word in words)


def peer_is_silent(error: Exception) -> bool:
    """Whether an exchange failed because another process did not answer in time."""
    return "Timed out waiting" in str(error)


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory has run out; torch has no one class for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    phrases = ("allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, RuntimeError) and any(phrase in text for phrase in phrases)


def _host_group(patience: timedelta) -> Any:
    """Return the group that talks over gloo: the default one (None), or one beside NCCL's."""
    if dist.get_backend() == "gloo":
        return None
    return dist.new_group(backend="gloo", timeout=patience)
