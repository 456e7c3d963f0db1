"""SIGTERM, SIGHUP and Ctrl-C: the first one saves and stops, the second one ends at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_SECONDS = 2.0
"""Signals within this time count as one: a launcher forwards what its processes also received."""


class Interrupted(KeyboardInterrupt):
    """A signal came during work that may be interrupted."""


class Signals:
    """Records the first signal; to be used as `with signals.installed()`."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the first signal; 0 if there was none."""
        self._came_at = 0.0
        self._may_raise = False
        self._terminals: list[int] = []
        """Those of standard output and standard error that are terminals."""

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


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process with SystemExit, so that it releases what it holds."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not cut that short
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(text: str) -> None:
    # Not print or logging, which the signal may have interrupted.
    os.write(2, f"{text}\n".encode())
