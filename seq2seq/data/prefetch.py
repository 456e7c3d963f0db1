"""Prefetch batches in a thread during training."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield the items in order; a thread computes `depth` of them in advance.

    Exceptions of the thread are raised here. Closing the iterator joins the thread, since one that
    outlives the interpreter may abort the process.
    """
    iterator, end = iter(items), object()
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    waiting: deque[Future[T | object]] = deque()
    try:
        while True:
            while len(waiting) <= depth:
                waiting.append(thread.submit(next, iterator, end))
            item = waiting.popleft().result()
            if item is end:
                return
            yield item  # type: ignore[misc]
    finally:
        thread.shutdown(cancel_futures=True)
