"""Work on blocks of a corpus, shared out to processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from seq2seq.errors import UnfinishedError
from seq2seq.machine.threads import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

WAITING = 2
"""Items for each process that are read ahead: more would only fill memory."""


MOST_PROCESSES = 8
"""One process reads for all: more would wait for it, and each takes some hundred megabytes."""


def num_processes() -> int:
    """Return how many processes share the work: one for each core that this one may use."""
    return min(usable_cores(), MOST_PROCESSES)


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Generator[Result, None, None]:
    """Yield `function` of each item, in order; several processes compute it where it is worth it.

    A single item, or all for one process, is computed here. function: at the top of a module.
    """
    stream = iter(items)
    first = list(islice(stream, 2))
    if processes == 1 or len(first) < 2:
        yield from map(function, chain(first, stream))
        return
    # Processes of their own from the start: a fork would copy the locks of running threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in chain(first, stream):
            waiting.append(pool.submit(function, item))
            if len(waiting) >= WAITING * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UnfinishedError(
            "a process that prepares the data has ended; if it left no message above, it was "
            "killed, perhaps for want of memory. The same command goes on where it stopped. (A "
            "program that prepares data must do so below `if __name__ == '__main__':`)"
        ) from None
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Leave Ctrl-C to the main process, and end when that is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
