"""Prefetching: order, errors, end of the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from seq2seq.data.training_data import prefetched


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_items_are_in_order_and_prefetched() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(20):
            made.append(i)
            yield i

    items = prefetched(numbers(), depth=3)
    assert next(items) == 0
    deadline = time.monotonic() + 10
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert made == [0, 1, 2, 3]  # one that was yielded, and three in advance
    assert list(items) == list(range(1, 20))
    assert not batch_threads()


def test_an_error_is_raised_after_earlier_items() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise ValueError("bad sentence")

    items = prefetched(numbers())
    assert next(items) == 1
    with pytest.raises(ValueError, match="bad sentence"):
        next(items)
    assert not batch_threads()


def test_the_thread_ends_when_the_iterator_is_closed() -> None:
    items = prefetched(iter(range(1000)))
    assert next(items) == 0
    assert batch_threads()
    items.close()
    assert not batch_threads()
