"""Processes that share the sentences of a search, or of a corpus, on a CPU, with one thread each.

Small matrix products gain little from several threads, and lose much where another program uses one
of the cores; processes that take the next sentences whenever they have room lose nothing.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from seq2seq.errors import UserError
from seq2seq.machine.threads import fixed_threads, keep_threads, usable_cores

T = TypeVar("T")
MOST = 16
"""Maximum number of processes: each needs memory for its sentences."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent ends."""


class WorkerError(Exception):
    """What has happened to a process that did not finish its work."""


class Waiting:
    """Numbers below `count` in ascending order, each of which is taken once."""

    def __init__(self, count: int, *, shared: bool = False, first: int = 0, step: int = 1) -> None:
        """shared: by all processes that are forked from this one; else first, first + step, ..."""
        self.count, self._next, self._step = count, first, step
        self._shared = multiprocessing.get_context("fork").Value("q", 0) if shared else None

    @property
    def first(self) -> int:
        """The next number; `count` if all are taken."""
        return min(self._next if self._shared is None else self._shared.value, self.count)

    def take(self, most: int) -> list[int]:
        """Take the next numbers, at most `most`."""
        if most <= 0:
            return []
        if self._shared is None:
            taken = list(range(self._next, self.count, self._step)[:most])
            self._next += len(taken) * self._step
            return taken
        with self._shared.get_lock():
            first = self._shared.value
            self._shared.value = min(first + most, self.count)
            return list(range(first, self._shared.value))


def usable_workers() -> int:
    """Return the number of processes that may share work.

    One where they cannot be forked safely: outside of Linux, and in a process that may have none.
    """
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return min(MOST, fixed_threads() or usable_cores())


def in_workers(work: Callable[[int], Iterator[T]], count: int) -> Iterator[T]:
    """Yield what `work(0)`, `work(1)`, ... yield in `count` forked processes, as it comes.

    Raises the UserError, FloatingPointError or MemoryError of the first process that has one,
    RuntimeError with the traceback of any other error, and WorkerError if a process was killed.
    """
    context = multiprocessing.get_context("fork")
    processes: dict[Connection, Any] = {}
    try:
        for number in range(count):
            # No process inherits the other end of its own pipe, or an end of a later one.
            reader, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(work, number, reader, sender), daemon=True)
            processes[reader] = process
            process.start()
            sender.close()
        readers = list(processes)
        while readers:
            for reader in (each for each in wait(readers) if isinstance(each, Connection)):
                try:
                    kind, value = reader.recv()
                except EOFError:
                    processes[reader].join()
                    raise WorkerError(_ended(processes[reader].exitcode)) from None
                if kind == "error":
                    raise value
                if kind == "end":
                    readers.remove(reader)
                else:
                    yield value
    finally:
        for process in processes.values():
            if process.is_alive():
                process.kill()
            if process.pid:
                process.join()


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed, perhaps for want of memory"
    return f"ended with exit code {code}"


def _run(
    work: Callable[[int], Iterator[Any]], number: int, reader: Connection, sender: Connection
) -> None:
    """Send what `work` yields, then that it has ended."""
    # The first process ends the others: by Ctrl-C, which all of them get, and when it is killed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    reader.close()
    gc.freeze()  # else the collector would write to, and so copy, all that the processes share
    keep_threads()
    torch.set_num_threads(1)
    try:
        for item in work(number):
            sender.send(("item", item))
        sender.send(("end", None))
    except BrokenPipeError:
        return
    except (UserError, FloatingPointError, MemoryError) as error:
        sender.send(("error", error))
    except torch.OutOfMemoryError as error:
        sender.send(("error", MemoryError(str(error))))
    except Exception:
        sender.send(("error", RuntimeError(traceback.format_exc())))
