"""Map a function over parts of a corpus in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice, starmap
from typing import Any, TypeVar

from seq2seq.errors import UnfinishedError
from seq2seq.machine.threads import usable_cores

Result = TypeVar("Result")

WAITING = 2
"""Tasks read in advance per process."""
MOST_PROCESSES = 8
"""One process reads for all others, and each takes some hundred megabytes."""


def num_processes() -> int:
    """Return the number of processes: one per usable core, at most MOST_PROCESSES."""
    return min(usable_cores(), MOST_PROCESSES)


def parallel_map(
    function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]
) -> Generator[Result, None, None]:
    """Yield `function(*task)` for each task, in order, computed by several processes.

    A single task, or all of them for one process, are computed here. function: must be picklable.
    """
    processes = num_processes()
    stream = iter(tasks)
    first = list(islice(stream, 2))
    if processes == 1 or len(first) < 2:
        yield from starmap(function, chain(first, stream))
        return
    # Not forked, which would copy the locks of running threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    waiting: deque[Future[Result]] = deque()
    try:
        for task in chain(first, stream):
            waiting.append(pool.submit(function, *task))
            if len(waiting) >= WAITING * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UnfinishedError(
            "a process that prepares the data has ended; without a message above, it was killed, "
            "possibly because of low memory. The same command resumes. (A program that prepares "
            "data must do so below `if __name__ == '__main__':`)"
        ) from None
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Ignore Ctrl-C, which the main process handles, and end when the main process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
