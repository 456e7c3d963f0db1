"""Tables and progress on a terminal."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

logger = logging.getLogger(__name__)


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return rows of cells as aligned lines. left: indices of left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


SECONDS_BETWEEN_LINES = 30


class ProgressBar:
    """Progress bar with a text. Use it in a `with` statement."""

    def __init__(self, total: float | None, *, visible: bool = True, wait: bool = True) -> None:
        """total: amount of work in any unit, or None. wait: log the first line after 30 s."""
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            console=console,
            disable=not (visible and console.is_interactive),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total)
        self._visible = visible
        self._last_line = time.monotonic() - (0 if wait else SECONDS_BETWEEN_LINES)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def advance(self, work: float) -> None:
        """Add finished work."""
        self._bar.update(self._task, advance=work)

    def show(self, text: str) -> None:
        """Show a text and the time left, if known, in the bar, or log them if a line is due."""
        if (seconds := self._bar.tasks[0].time_remaining) is not None:
            text = f"{text}, {duration(seconds / 60)} left"
        self._bar.update(self._task, description=text)
        now = time.monotonic()
        if self._visible and self._bar.disable and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            logger.info(text)


def duration(minutes: float) -> str:
    """Format a time: in minutes, or in seconds below two minutes."""
    return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"
