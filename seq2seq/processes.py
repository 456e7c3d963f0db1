"""The processes of one command, their collective operations, and the signals that they receive.

All operations run on the hosts (gloo), so that no GPU has to wait.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar
from uuid import uuid4

from seq2seq.errors import SharedError, UserError
from seq2seq.machine.devices import may_have_gpu
from seq2seq.machine.threads import keep_threads

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
"""Timeout of collective operations."""
LONG_TIMEOUT = timedelta(hours=24)
"""Timeout of collective operations while another process prepares data or waits for input."""
SAME_SECONDS = 2.0
"""Signals within this time count as one: a launcher forwards what its processes also received."""
UNSUPPORTED = {
    "ACCELERATE_USE_PARALLELISM_CONFIG": "tensor, context or sequence parallelism",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}
"""Environment variables by which `accelerate launch` requests unsupported features."""
LAUNCHED = re.compile(r"ACCELERATE_|(WORLD|PMI|OMPI_COMM_WORLD|MV2_COMM_WORLD)_SIZE$")
"""Names of variables that a launcher of several processes sets."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processes:
    """The index of this process among `count`, and collective operations with the others."""

    index: int = 0
    count: int = 1
    device: str = "cpu"
    group: Any = None

    @classmethod
    def join(cls, timeout: timedelta = TIMEOUT, *, needs_torch: bool = True) -> Processes:
        """Join the processes that `accelerate launch` or `torchrun` started; alone without them.

        Raises UserError if the launch asks for more than copies of the model. Accelerate's state is
        a singleton: this call fixes device and processes for later ones. needs_torch: if False, a
        single process without a GPU loads neither torch nor Accelerate, which take two seconds.
        """
        if not (needs_torch or any(map(LAUNCHED.match, os.environ)) or may_have_gpu()):
            return cls()
        import torch
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env

        _require_copies()
        cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        with _stdout_to_stderr():  # torch 2.9 prints how its processes are connected
            state = PartialState(cpu=cpu, timeout=timeout)
            group = None  # the default one, unless that is NCCL's
            if state.num_processes > 1 and torch.distributed.get_backend() != "gloo":
                group = torch.distributed.new_group(backend="gloo", timeout=timeout)
        if state.num_processes == 1:
            _warn_if_others_were_expected()
            return cls(device=str(state.device))
        keep_threads()  # the launcher has divided the cores
        return cls(state.process_index, state.num_processes, str(state.device), group)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and logs for all."""
        return self.index == 0

    def shard(self, count: int) -> range:
        """Return the indices of this process's shard of `count` items, in steps of `self.count`."""
        return range(self.index, count, self.count)

    def all_gather(self, values: Sequence[T]) -> list[T]:
        """Return the results of all shards, in the order of the items."""
        if self.count == 1:
            return list(values)
        import torch.distributed as dist

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
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def all_reduce_max(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over all processes."""
        return self._all_reduce(numbers, "MAX")

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all processes."""
        return self._all_reduce(numbers, "SUM")

    def _all_reduce(self, numbers: Sequence[float], operation: str) -> list[float]:
        if self.count == 1:
            return list(numbers)
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation), group=self.group)
        return tensor.tolist()

    def barrier(self) -> None:
        """Wait until every process has called this."""
        if self.count > 1:
            import torch.distributed as dist

            dist.barrier(group=self.group)

    def require_equal(self, value: object, advice: str) -> None:
        """Raise SharedError unless every process has the main process's value.

        advice: what is different, and what to do.
        """
        equal = self.all_gather([value == self.broadcast(value)])
        if not all(equal):
            numbers = ", ".join(str(index) for index, found in enumerate(equal) if not found)
            raise SharedError(f"process {numbers} of {self.count}: {advice}")

    def require_shared(self, folder: Path) -> None:
        """Create a folder; raise SharedError unless every process sees it."""
        if self.count == 1:
            return
        mark = folder / f".{uuid4().hex}.tmp"
        if self.is_main:
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
        shared = self.broadcast(mark)  # after it was created
        try:
            self.require_equal(
                (folder / shared.name).exists(),
                f"does not see {shared.parent} as the main process does; processes on several "
                "machines need it on a shared file system",
            )
        finally:
            if self.is_main:
                mark.unlink()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run a block on the main process first, then on the others."""
        if self.count == 1:
            yield
            return
        import torch.distributed as dist

        self.barrier()  # new_group would wait for a process that has ended until the timeout
        group = dist.new_group(backend="gloo", timeout=LONG_TIMEOUT)
        if not self.is_main:
            dist.barrier(group=group)
        yield
        if self.is_main:
            dist.barrier(group=group)

    def exit(self, code: int = 0) -> None:
        """End this process at once, as the last step of a command, if it is one of several.

        An ordinary exit joins torch's threads. About one such exit in thirty aborts, and the
        launcher would report a finished run as failed.
        """
        if self.count > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def peer_is_lost(error: Exception) -> bool:
    """Return whether a collective failed because another process has ended."""
    words = ("closed by peer", "Connection reset by peer", "Broken pipe")
    return any(word in str(error) for word in words)


def peer_is_silent(error: Exception) -> bool:
    """Return whether a collective failed because another process did not respond in time."""
    return "Timed out waiting" in str(error)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what libraries print to standard error: standard output is for results."""
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        yield
        return
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _require_copies() -> None:
    """Raise UserError if a launch asks for more than a copy of the model on every device.

    Every process says so: the launcher ends the others when the first one has.
    """
    from accelerate.utils import is_torch_xla_available, parse_flag_from_env

    asked = [name for variable, name in UNSUPPORTED.items() if parse_flag_from_env(variable)]
    if os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower() == "fp8":
        asked.append("fp8")
    if is_torch_xla_available():
        asked.append("TPUs or XLA (set USE_TORCH_XLA=0)")
    if asked:
        raise UserError(
            f"seq2seq does not support {', '.join(asked)}; the model is replicated on all devices. "
            "Launch with --multi_gpu --mixed_precision no, without other flags (or set "
            "distributed_type: MULTI_GPU and mixed_precision: 'no' in your accelerate config)"
        )


def _warn_if_others_were_expected() -> None:
    """Warn that `accelerate launch` has started one process although it was told to start more.

    It then starts the command by itself, and sets the port at which several would meet.
    """
    launched = {"ACCELERATE_USE_CPU", "MASTER_PORT"} <= os.environ.keys()
    if launched and "LOCAL_RANK" not in os.environ:
        logger.warning(
            "accelerate launch has started one process: without --multi_gpu, --num_processes has "
            "no effect (on a CPU, too, launch with --multi_gpu --num_processes N, without --cpu)"
        )


class Interrupted(KeyboardInterrupt):
    """A signal came during work that may be interrupted."""


class Signals:
    """SIGTERM, SIGHUP and Ctrl-C: the first one saves and stops, the second one ends at once.

    To be used as `with signals.installed()`.
    """

    def __init__(self) -> None:
        self.number = 0
        """Number of the first signal; 0 if there was none."""
        self._came_at = 0.0
        self._may_raise = False
        self._terminals: list[int] = []
        """File descriptors of standard output and standard error that are terminals."""

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Handle SIGTERM, SIGINT and SIGHUP; restore the previous handlers at the end."""
        numbers = [signal.SIGTERM, signal.SIGINT]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)  # unless nohup lets the run outlive its terminal
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise Interrupted at once within this block."""
        self._may_raise = True
        try:
            if self.number:
                raise Interrupted
            yield
        finally:
            self._may_raise = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name == "SIGHUP":  # writing to a closed terminal is an error
            for stream in self._terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if not self.number:
            self.number, self._came_at = number, time.monotonic()
            _say(f"{name}: finishing this update and saving; a second one ends at once")
            if self._may_raise:
                raise Interrupted
        elif time.monotonic() - self._came_at > SAME_SECONDS:
            # Not an exception: it could be caught, or delayed by joining a thread.
            _say(f"{name} again: ending at once without saving")
            os._exit(128 + number)


def _say(text: str) -> None:
    # Not print or logging: the signal may have interrupted either.
    os.write(2, f"{text}\n".encode())
