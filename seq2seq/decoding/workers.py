"""Processes that share the sentences of a search on a CPU, with one thread each.

Small matrix products gain little from several threads, and lose much where another program uses one
of the cores; processes that take the next sentences whenever they have room lose nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from seq2seq.errors import UserError
from seq2seq.machine.threads import fixed_threads, keep_threads, usable_cores

T = TypeVar("T")


class Waiting:
    """The numbers 0, 1, ... below `count`, each of which is taken once, by any of the workers."""

    def __init__(self, count: int, *, shared: bool = False) -> None:
        """shared: by processes that are forked from this one."""
        self.count, self._taken = count, 0
        self._shared = multiprocessing.get_context("fork").Value("q", 0) if shared else None

    def __len__(self) -> int:
        taken = self._shared.value if self._shared is not None else self._taken
        return self.count - taken

    def take(self, most: int) -> list[int]:
        """Take the next numbers, at most `most`."""
        if self._shared is None:
            first, self._taken = self._taken, min(self._taken + most, self.count)
            return list(range(first, self._taken))
        with self._shared.get_lock():
            first = self._shared.value
            self._shared.value = min(first + most, self.count)
            return list(range(first, self._shared.value))


def usable_workers() -> int:
    """Return the number of processes that a search may use: one without Linux's safe `fork`."""
    if sys.platform != "linux":
        return 1
    return fixed_threads() or usable_cores()


def in_workers(work: Callable[[], Iterator[T]], count: int) -> Iterator[T]:
    """Yield what `work()` yields in `count` forked processes, as it comes.

    Raises the UserError or FloatingPointError of the first process that has one.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_run, args=(work, sender), daemon=True) for _, sender in pipes
    ]
    readers = [reader for reader, _ in pipes]
    try:
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        while readers:
            for reader in wait(readers):
                assert isinstance(reader, Connection)
                try:
                    kind, value = reader.recv()
                except EOFError:
                    raise UserError(
                        "a process of the search was killed, perhaps for want of memory; lower "
                        "--batch-tokens"
                    ) from None
                if kind == "error":
                    raise value
                if kind == "end":
                    readers.remove(reader)
                else:
                    yield from value
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            if process.pid:
                process.join()


def _run(work: Callable[[], Iterator[Any]], sender: Connection) -> None:
    """Send what `work()` yields, then that it has ended."""
    # Ctrl-C goes to all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_threads()
    torch.set_num_threads(1)
    with contextlib.suppress(BrokenPipeError):
        try:
            for item in work():
                sender.send(("item", [item]))
            sender.send(("end", None))
        except (UserError, FloatingPointError, MemoryError) as error:
            sender.send(("error", error))
        except RuntimeError as error:  # torch's, which may hold what cannot be sent
            sender.send(("error", type(error)(str(error))))
