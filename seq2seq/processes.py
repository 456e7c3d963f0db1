"""The processes that share one command: who is who, and what they tell one another.

Everything here goes through the hosts (gloo), never through a GPU, so that it makes none wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

T = TypeVar("T")

PATIENCE = timedelta(hours=24)
"""Processes wait while the first one prepares data, however long that takes."""


@dataclass(frozen=True)
class Processes:
    """This process's number among `count`, and the exchange with the others."""

    index: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: Any = None

    @classmethod
    def join(cls) -> Processes:
        """Join the processes that `accelerate launch` or `torchrun` started; alone without them.

        The state that comes first decides on device and processes for all that follow, those of
        Accelerate too.
        """
        cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        state = PartialState(cpu=cpu, timeout=PATIENCE)
        if state.num_processes == 1:
            return cls(device=state.device)
        return cls(state.process_index, state.num_processes, state.device, _host_group())

    @property
    def is_main(self) -> bool:
        """Whether this one writes and speaks for all."""
        return self.index == 0

    def share(self, count: int) -> range:
        """Return this process's places out of `count`: one in `self.count`."""
        return range(self.index, count, self.count)

    def gather(self, values: Sequence[T]) -> list[T]:
        """Put together, in order, what every process made of its `share`."""
        if self.count == 1:
            return list(values)
        hands: list[Any] = [None] * self.count
        dist.all_gather_object(hands, list(values), group=self.group)
        whole: list[Any] = [None] * sum(map(len, hands))
        for index, hand in enumerate(hands):
            whole[index :: self.count] = hand
        return whole

    def tell(self, value: T) -> T:
        """Return the main process's value on all of them."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def largest(self, *numbers: float) -> list[float]:
        """Return the largest of each number over all processes."""
        if self.count == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()

    def total(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.count == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def wait(self) -> None:
        """Wait for the others."""
        if self.count > 1:
            dist.barrier(group=self.group)

    def leave(self) -> None:
        """End the exchange, as a command's last act."""
        if self.count > 1:
            dist.destroy_process_group()


def peer_is_lost(error: RuntimeError) -> bool:
    """Whether an exchange failed because another process has ended, and said itself why."""
    words = ("closed by peer", "Connection reset", "Broken pipe")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def _host_group() -> Any:
    """Return the group that talks over gloo: the default one (None), or one beside NCCL's."""
    if dist.get_backend() == "gloo":
        return None
    return dist.new_group(backend="gloo", timeout=PATIENCE)
