"""SIGTERM and Ctrl-C: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_SECONDS = 2.0
"""A launcher passes on what its processes have got already: within this time it is one signal."""


class Interrupted(KeyboardInterrupt):
    """A signal came while training was waiting for something that can be broken off."""


class Signals:
    """The signal that came first, if any; install it with `with`."""

    def __init__(self) -> None:
        self.number = 0
        """Of the first signal that came; 0 while there was none."""
        self._came_at = 0.0
        self._may_raise = False

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Take SIGTERM and SIGINT over, and give them back at the end."""
        before = {n: signal.signal(n, self._handle) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """Let a signal raise Interrupted at once: nothing is lost by leaving this block."""
        self._may_raise = True
        try:
            if self.number:
                raise Interrupted
            yield
        finally:
            self._may_raise = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not self.number:
            self.number, self._came_at = number, time.monotonic()
            _say(f"{name}: finishing this update and saving; once more ends at once")
            if self._may_raise:
                raise Interrupted
        elif time.monotonic() - self._came_at > SAME_SECONDS:
            # No exception: a handler may hold it up, or a thread that is being waited for.
            _say(f"{name} again: ending at once, without saving")
            os._exit(128 + number)


def _say(text: str) -> None:
    # Not through print or logging: the signal may have come in the midst of one of theirs.
    os.write(2, f"{text}\n".encode())
