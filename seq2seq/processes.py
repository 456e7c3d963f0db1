"""Processes of a command, their collective operations, and signal handling.

Collective operations run on the CPU (gloo) and never block a GPU.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

from seq2seq.errors import UserError
from seq2seq.machine.devices import may_have_gpu
from seq2seq.machine.threads import keep_threads

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
LONG_TIMEOUT = timedelta(hours=24)
"""Timeout of collective operations while a process prepares data or waits for input."""
SAME_SIGNAL_SECONDS = 2.0
"""Signals within this time count as one: launchers forward signals that processes also get."""
UNSUPPORTED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
"""Features that are not data parallelism: `accelerate launch` sets ACCELERATE_USE_... for them."""
LAUNCHED = re.compile(r"ACCELERATE_|(WORLD|PMI|OMPI_COMM_WORLD|MV2_COMM_WORLD)_SIZE$")
"""Names of environment variables that launchers of several processes set."""


@dataclass(frozen=True)
class Processes:
    """The processes of a command, with collective operations. index: rank of this process."""

    index: int = 0
    count: int = 1
    device: str = "cpu"
    group: Any = None

    @classmethod
    def join(cls, timeout: timedelta = TIMEOUT) -> Processes:
        """Join the processes started by `accelerate launch` or `torchrun`, if any.

        Accelerate's state is a singleton: later calls get the device and processes of the first.
        Raises UserError if the launch requests more than data parallelism.
        """
        if not (any(map(LAUNCHED.match, os.environ)) or may_have_gpu()):
            return cls()  # torch and Accelerate would take two seconds to load
        import torch
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env

        _require_data_parallel()
        cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        with _stdout_to_stderr():  # torch 2.9 prints connection details
            state = PartialState(cpu=cpu, timeout=timeout)
            group = None  # the default group, unless that is NCCL's
            if state.num_processes > 1 and torch.distributed.get_backend() != "gloo":
                group = torch.distributed.new_group(backend="gloo", timeout=timeout)
        if state.num_processes == 1:
            return cls(device=str(state.device))
        keep_threads()  # the launcher has divided the cores
        return cls(state.process_index, state.num_processes, str(state.device), group)

    @property
    def is_main(self) -> bool:
        """Whether this is the main process: it writes files and logs."""
        return self.index == 0

    def shard(self, count: int) -> range:
        """Return the indices of this process's shard of `count` items: every `self.count`-th."""
        return range(self.index, count, self.count)

    def all_gather(self, values: Sequence[T]) -> list[T]:
        """Return the values of all shards, in the order of the items."""
        if self.count == 1:
            return list(values)
        import torch.distributed as dist

        shards: list[Any] = [None] * self.count
        dist.all_gather_object(shards, list(values), group=self.group)
        gathered: list[Any] = [None] * sum(map(len, shards))
        for index, shard in enumerate(shards):
            gathered[index :: self.count] = shard
        return gathered

    def broadcast(self, value: T) -> T:
        """Return the main process's value on all processes."""
        return self.all_gather([value])[0]

    def all_reduce(self, *numbers: float, operation: str = "SUM") -> list[float]:
        """Return the sum, or "MAX", of each number over all processes."""
        if self.count == 1:
            return list(numbers)
        # Not all_gather, which takes three times as long: this runs several times per update.
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation), group=self.group)
        return tensor.tolist()

    def barrier(self) -> None:
        """Wait until every process has called this."""
        self.all_gather([None])

    def require_equal(self, value: object, advice: str) -> None:
        """Raise UserError unless every process has the main process's value.

        advice: text for the error: the difference, and what to do.
        """
        values = self.all_gather([value])
        if numbers := [str(index) for index, other in enumerate(values) if other != values[0]]:
            raise UserError(f"process {', '.join(numbers)} of {self.count}: {advice}")

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run a block on the main process first, then on the others."""
        if self.count == 1:
            yield
            return
        import torch.distributed as dist

        self.barrier()  # if a process has ended, this fails at once; new_group would time out
        group = dist.new_group(backend="gloo", timeout=LONG_TIMEOUT)
        if not self.is_main:
            dist.barrier(group=group)
        yield
        if self.is_main:
            dist.barrier(group=group)

    def exit(self, code: int = 0) -> None:
        """Exit immediately if there are several processes. Call this last in a command.

        A normal exit joins torch's threads. About one in thirty aborts, and the launcher would
        report a finished run as failed.
        """
        if self.count > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def peer_is_lost(error: Exception) -> bool:
    """Return whether a collective failed because another process has ended."""
    words = ("closed by peer", "Connection reset by peer", "Broken pipe")
    return any(word in str(error) for word in words)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error while libraries print messages."""
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _require_data_parallel() -> None:
    """Raise UserError if a launch requests more than a copy of the model on every device."""
    from accelerate.utils import parse_flag_from_env

    requested = [name for name in UNSUPPORTED if parse_flag_from_env(f"ACCELERATE_USE_{name}")]
    if requested:
        raise UserError(
            f"seq2seq does not support {', '.join(requested)}: it copies the model to all devices. "
            "Launch with --multi_gpu --mixed_precision no, without other flags (or set "
            "distributed_type: MULTI_GPU and mixed_precision: 'no' in your accelerate config)"
        )


class Signals:
    """Handler of SIGTERM, SIGHUP and Ctrl-C: the first signal saves and stops, the second exits."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the first signal, or 0."""
        self._received_at = 0.0
        self._may_raise = False
        self._terminals: list[int] = []
        """File descriptors of standard output and standard error, if they are terminals."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGTERM, SIGINT and SIGHUP, and restore the previous handlers at the end."""
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)  # not under nohup
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise KeyboardInterrupt immediately within this block."""
        self._may_raise = True
        try:
            if self.number:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name == "SIGHUP":  # the terminal is gone: writing to it would fail
            for stream in self._terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if not self.number:
            self.number, self._received_at = number, time.monotonic()
            _write_stderr(f"{name}: finishing this update and saving; a second one exits at once")
            if self._may_raise:
                raise KeyboardInterrupt
        elif time.monotonic() - self._received_at > SAME_SIGNAL_SECONDS:
            # Not an exception: it could be caught, or delayed while threads are joined.
            _write_stderr(f"{name} again: exiting without saving")
            os._exit(128 + number)


def _write_stderr(text: str) -> None:
    # print and logging are not safe here: the signal may have interrupted them.
    os.write(2, f"{text}\n".encode())
