"""Progress bar of data preparation."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

SECONDS_BETWEEN_LINES = 30
"""Interval of progress lines if standard error is not a terminal."""

logger = logging.getLogger(__name__)


class ProgressBar:
    """A progress bar on a terminal, else a line every half minute."""

    def __init__(self, name: str, total: float | None) -> None:
        """total: amount of work, in any unit, if known."""
        self._name, self._pairs = name, 0
        self._last_line = time.monotonic()
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType) -> None:
        self._bar.stop()

    def advance(self, pairs: int, work: float) -> None:
        """Add finished pairs and their work."""
        self._pairs += pairs
        text = f"{self._name}: {self._pairs:,} pairs"
        self._bar.update(self._task, advance=work)
        left = self._bar.tasks[0].time_remaining  # from the speed of the last half minute
        if left is not None:
            text += f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"
        self._bar.update(self._task, description=text)
        if self._bar.disable and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            logger.info("  %s", text)
