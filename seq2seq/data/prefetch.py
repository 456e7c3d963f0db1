"""Prefetch batches in a thread during training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.1
"""Interval at which the thread checks whether the iterator was closed."""


def prefetched(items: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield the items in order; a thread computes up to `depth` of them in advance.

    Exceptions of the thread are raised here. Closing the iterator joins the thread, since one that
    outlives the interpreter may abort the process.
    """
    ready: queue.Queue[tuple[list[T], BaseException | None]] = queue.Queue(depth)
    closed = threading.Event()

    def hand_over(item: list[T], error: BaseException | None = None) -> None:
        while not closed.is_set():
            try:
                ready.put((item, error), timeout=POLL_SECONDS)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                hand_over([item])
                if closed.is_set():
                    return
            hand_over([])
        except BaseException as error:
            hand_over([], error)

    thread = threading.Thread(target=work, name="batches", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if not item:
                return
            yield item[0]
    finally:
        closed.set()
        thread.join()
